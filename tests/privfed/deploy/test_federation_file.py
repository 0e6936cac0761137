"""Who takes part: read, written, told apart, and agreed on."""

import pytest
from lanes import every_case

from privfed.core.errors import Refused
from privfed.deploy.files.federation_file import FederationFile, add_site, agreed
from privfed.deploy.files.keys import PublicKey, SiteKey
from privfed.secure.masked.policy import least_threshold

KEYS = {name: SiteKey.draw(name).public for name in ("coordinator", "berlin", "paris", "rome")}
SITES = {name: str(key) for name, key in KEYS.items() if name != "coordinator"}
STATED = {"name": "stays", "coordinator": str(KEYS["coordinator"]), "sites": SITES}


def written(path, **changes):
    agreed({**STATED, **changes}).write_new(path)
    return path


def test_what_is_written_is_read(tmp_path):
    path = written(tmp_path / "federation.toml", threshold=3)
    assert FederationFile.read(path) == agreed({**STATED, "threshold": 3})
    with pytest.raises(Refused, match="exists already"):
        agreed(STATED).write_new(path)


def test_the_digest_is_of_what_is_agreed_on_alone(tmp_path):
    digest = agreed(STATED).digest()
    sites = dict(reversed(SITES.items()))
    sites["rome"] = f"ed25519:{KEYS['rome'].raw.hex()}"
    path = tmp_path / "other.toml"
    lines = [f'{name} = "{key}"  # a remark' for name, key in sites.items()]
    head = f'threshold=0\ncoordinator = "{STATED["coordinator"]}"\nname="stays"\n\n[sites]\n'
    path.write_text(head + "\n\n".join(lines), encoding="utf-8")
    assert FederationFile.read(path).digest() == digest
    others = [
        {"name": "stay"},
        {"threshold": 3},
        {"coordinator": str(SiteKey.draw("x").public)},
        {"sites": {**SITES, "oslo": str(SiteKey.draw("x").public)}},
        {"sites": {**SITES, "berlin": SITES["paris"], "paris": SITES["berlin"]}},
    ]
    assert digest not in {agreed({**STATED, **other}).digest() for other in others}


def test_every_mistake_is_in_one_message(tmp_path):
    path = tmp_path / "federation.toml"
    same = SITES["rome"]
    text = f'name = "a b"\ncoordinator = "{same}"\nthreshold = -9\nport = 3\n[sites]\n'
    path.write_text(f'{text}rome = "{same}"\nRome = "ed25519:no"\nbonn = "{SITES["paris"]}"\n')
    with pytest.raises(Refused) as error:
        FederationFile.read(path)
    for part in (
        "name is 'a b'",
        "rome has the key of the coordinator",
        "Rome and rome differ only in the case",
        "Rome: expected 43 letters",
        "threshold is -9",
        "port is not a known key",
    ):
        assert part in str(error.value)
    assert SITES["paris"] not in str(error.value)


@every_case(
    ("text", "reason"),
    [
        ("format = 2\n", "update privfed"),
        ("name = \n", "not valid TOML"),
        ("", "name is missing"),
        ('name = 3\ncoordinator = "x"\n', "expected text"),
    ],
)
def test_other_files_are_no_federation(tmp_path, text, reason):
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(Refused, match=reason):
        FederationFile.read(tmp_path / "f.toml")
    with pytest.raises(Refused, match="does not exist"):
        FederationFile.read(tmp_path / "none.toml")


def test_sites_are_added_and_remarks_stay(tmp_path):
    path = written(tmp_path / "f.toml", sites={})
    path.write_text(path.read_text() + "# ours\n")
    for name, key in SITES.items():
        add_site(path, name, key)
    assert FederationFile.read(path) == agreed(STATED)
    assert "# ours" in path.read_text()


def test_a_site_is_added_where_sites_are_not_last(tmp_path):
    path = tmp_path / "f.toml"
    berlin = f'sites = {{ berlin = "{SITES["berlin"]}" }}\n'
    path.write_text(f'name = "stays"\ncoordinator = "{STATED["coordinator"]}"\n{berlin}')
    federation = add_site(path, "a.b", SITES["rome"])
    assert FederationFile.read(path) == federation
    assert federation.sites == {"berlin": SITES["berlin"], "a.b": SITES["rome"]}


@every_case(
    ("name", "key", "reason"),
    [
        ("rome", str(SiteKey.draw("x").public), "a site rome already"),
        ("oslo", SITES["rome"], "has the key of rome"),
        ("oslo", STATED["coordinator"], "has the key of the coordinator"),
        ("ROME", str(SiteKey.draw("x").public), "differ only in the case"),
        ("oslo", "ed25519:x", "43 letters"),
        ("o slo", str(SiteKey.draw("x").public), "no valid name"),
    ],
    ids=["twice", "its key", "the coordinator's", "one name", "no key", "no name"],
)
def test_what_cannot_be_added_changes_nothing(tmp_path, name, key, reason):
    path = written(tmp_path / "f.toml")
    before = path.read_bytes()
    with pytest.raises(Refused, match=reason):
        add_site(path, name, key)
    assert path.read_bytes() == before


def test_numbers_follow_from_names():
    shuffled = agreed({**STATED, "sites": dict(reversed(SITES.items()))})
    assert shuffled.order == ("berlin", "paris", "rome")
    assert shuffled.directory() == {
        0: KEYS["berlin"].raw,
        1: KEYS["paris"].raw,
        2: KEYS["rome"].raw,
    }
    assert shuffled.name_of(PublicKey.parse(SITES["paris"])) == "paris"
    assert shuffled.name_of(KEYS["coordinator"]) is None


def test_shares_are_the_fewest_that_may_open_a_secret():
    federation = agreed(STATED)
    for colluders in (1, 2):
        for threat in ("curious", "malicious"):
            least = max(least_threshold(3, colluders, threat), 2)
            assert federation.least_shares(colluders, threat) == least
            assert least > colluders
            assert threat == "curious" or 2 * least > 3 + colluders
    assert agreed({**STATED, "threshold": 3}).least_shares(1, "curious") == 3
    with pytest.raises(Refused, match="threshold is 4, but there are 3 sites"):
        agreed({**STATED, "threshold": 4}).least_shares(1, "malicious")
    with pytest.raises(Refused, match="at least 3"):
        agreed({**STATED, "threshold": 2}).least_shares(1, "malicious")


@every_case(("sites", "colluders"), [(0, 0), (1, 0), (3, 3), (3, -1)])
def test_too_few_sites_hide_nobody(sites, colluders):
    federation = agreed({**STATED, "sites": dict(list(SITES.items())[:sites])})
    with pytest.raises(Refused, match="expected at least 2"):
        federation.least_shares(colluders, "curious")


# --- regions ---

FOUR = {**SITES, "oslo": str(SiteKey.draw("oslo").public)}
REGIONS = {
    "south": {"coordinator": str(SiteKey.draw("south").public), "sites": ["rome", "paris"]},
    "north": {"coordinator": str(SiteKey.draw("north").public), "sites": ["oslo", "berlin"]},
}


def regional(**changes):
    return agreed({**STATED, "sites": FOUR, "regions": REGIONS, **changes})


def test_regions_are_written_and_read_and_in_the_digest(tmp_path):
    federation = regional()
    federation.write_new(tmp_path / "federation.toml")
    read = FederationFile.read(tmp_path / "federation.toml")
    assert read == federation
    shuffled = {
        name: {**region, "sites": region["sites"][::-1]}
        for name, region in reversed(REGIONS.items())
    }
    assert read.digest() == federation.digest() == regional(regions=shuffled).digest()
    others = [
        {"south": {**REGIONS["south"], "coordinator": str(SiteKey.draw("x").public)}},
        {
            "south": {**REGIONS["south"], "sites": ["rome", "oslo"]},
            "north": {**REGIONS["north"], "sites": ["paris", "berlin"]},
        },
    ]
    digests = {regional(regions={**REGIONS, **other}).digest() for other in others}
    assert len({federation.digest(), agreed({**STATED, "sites": FOUR}).digest(), *digests}) == 4


def test_sites_of_regions_have_the_numbers_of_a_simulation():
    """Site i is in region i mod R (`privfed.secure.regional.channel.split`)."""
    federation = regional()
    assert federation.order == ("berlin", "paris", "oslo", "rome")
    assert [*federation.parties] == ["north", "south"]
    for number, name in enumerate(sorted(REGIONS)):
        assert [*federation.directory(name)] == [number, number + 2]
        assert federation.key_asking(name) == federation.parties[name]
        assert {federation.region_of(site) for site in federation.directory(name)} == {name}
    assert federation.directory(None) == federation.directory()
    assert federation.sharing == 2
    assert federation.least_shares(1, "curious") == 2
    flat = agreed(STATED)
    assert [*flat.parties] == [*flat.order]
    assert flat.region_of(2) is None


@every_case(
    "changes, reason",
    [
        ({"north": {**REGIONS["north"], "sites": ["oslo", "rome"]}}, "each site exactly once"),
        ({"north": {**REGIONS["north"], "sites": ["oslo"]}}, "at least 2"),
        ({"north": {**REGIONS["north"], "sites": ["oslo", "bonn"]}}, "each site exactly once"),
        ({"south": REGIONS["north"]}, "has the key of the coordinator of"),
        (
            {"north": {**REGIONS["north"], "coordinator": STATED["coordinator"]}},
            "north has the key of the coordinator",
        ),
        ({"north": {**REGIONS["north"], "coordinator": FOUR["rome"]}}, "has the key of rome"),
        ({"north": {**REGIONS["north"], "coordinator": "no"}}, "a public key begins with"),
    ],
)
def test_regions_that_are_no_partition_are_refused(changes, reason):
    with pytest.raises(Refused, match=reason):
        regional(regions={**REGIONS, **changes})


def test_unequal_regions_and_a_single_region_are_refused():
    five = {**FOUR, "bonn": str(SiteKey.draw("bonn").public)}
    larger = {**REGIONS["north"], "sites": ["oslo", "berlin", "bonn"]}
    with pytest.raises(Refused, match="different numbers of sites"):
        regional(sites=five, regions={**REGIONS, "north": larger})
    with pytest.raises(Refused, match="a single region"):
        regional(regions={"north": {**REGIONS["north"], "sites": [*FOUR]}})
    with pytest.raises(Refused, match="each site exactly once"):
        regional().with_site("bonn", five["bonn"])
