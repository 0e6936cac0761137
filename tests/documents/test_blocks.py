"""The runner catches what is wrong in a page, and no block escapes it."""

import sys
from pathlib import Path

import pytest
from documents.__main__ import main, rewritten
from documents.blocks import Failure, blocks, spans
from documents.keys import wrong_key, wrong_overrides
from documents.lookups import wrong_names
from documents.outputs import difference, for_a_page
from documents.page import check, parse, play
from documents.shell import commands
from lanes import every_case

GOOD = """
# A page

<!-- block: hidden
size = 3
-->
<!-- block: file=made.py -->
```python
numbers = [0, 1, 2]
```

```python
import made
print(sum(made.numbers) + size)
made.numbers
```
<!-- block: output -->
```text
6
[0, 1, 2]
```

<!-- block: file=run.toml; small=rounds = 120 -> rounds = 2 -->
```toml
[run]
rounds = 120
randomness = "seeded"
```

<!-- block: small=--set data.clients=50 --set cohort.size=20 -->
```console
privfed train run.toml --out runs/a   # a run
privfed audit runs/a > audit.txt && cat audit.txt
```
<!-- block: output=shape; exact=δ -->
```text
 data         digits, 500 clients declared (iid)
…
 ε            … at δ = 0.0001 (nominal)
…
 rounds       120 of 120
…
```

- In a list:

  <!-- block: exit=2 -->
  ```console
  privfed check \\
      --set run.rounds=none
  ```

```{note}
<!-- block: skip=it takes several machines -->
~~~console
torchrun --nnodes 2 ... -m privfed train run.toml
pip install '.[onnx]' && make test
some other program
~~~
```

```toml
[tune.over]
"client.lr" = [0.1, 0.3]
```
"""
MUTATIONS = {
    "made.numbers) + size": "made.numbers) / 0",
    "0, 1, 2]\n```\n\n<!--": "0, 1, 3]\n```\n\n<!--",
    "numbers = [0, 1, 2]": "numbers = [0, 1, 2, 3]",
    "rounds = 120\nrand": "roundz = 120\nrand",
    'randomness = "seeded"': 'randomness = "seedy"',
    "rounds = 120 -> ": "rounds = 12 -> ",
    "--out runs/a": "--oot runs/a",
    "audit runs/a": "audit runs/b",
    "cat audit.txt": "cat adit.txt",
    "privfed audit": "privfed adit",
    "digits, 500": "digit, 500",
    "at δ = 0.0001": "at δ = 0.001",
    "output=shape": "output=shapes",
    "exit=2": "exit=3",
    "rounds=none": "rounds=3",
    "block: exit": "block: exits",
    "block: skip=it takes several machines": "block: skip=",
    "```console\nprivfed train": "```bash\nprivfed train",
    "```text\n6": "```\n6",
    ".[onnx]": ".[onx]",
    "make test": "make tests",
    "-m privfed train": "-m privfed tain",
    '"client.lr" =': '"client.rl" =',
    "```toml\n[tune": "<!-- block: exit=1 -->\n\nwords\n\n```toml\n[tune",
    "```{note}": "```{code-block} text",
    "~~~console": "~~~console linenos",
    "# A page": "# A page\n\n    privfed train",
    "-->\n```console\nprivfed train": "-->\n```console\n$ privfed train",
    "   # a run": " | tail -n 3",
    "&& cat audit.txt": "&& sed p audit.txt",
}


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.md"


def test_a_page_runs_from_its_first_block_to_its_last(page):
    page.write_text(GOOD, encoding="utf-8")
    here, main, path = Path.cwd(), sys.modules["__main__"], [*sys.path]
    check(page)
    assert (Path.cwd(), sys.modules["__main__"], sys.path) == (here, main, path)
    assert "made" not in sys.modules


@pytest.mark.parametrize("before", MUTATIONS)
def test_what_is_wrong_in_a_page_is_caught(page, before):
    assert GOOD.count(before) >= 1
    page.write_text(GOOD.replace(before, MUTATIONS[before], 1), encoding="utf-8")
    with pytest.raises(Failure, match=r"page\.md:?\d*: "):
        check(page)


@every_case(
    "shown, printed, shape, same",
    [
        ("a\n…\nd", "a\nb\nc\nd\n", False, True),
        ("a\n…\nd", "a\nd", False, True),
        ("a … c", "a  b  c", False, True),
        ("a … c", "a\nc", False, False),
        ("a  1", "a 1\n\n", False, True),
        ("a 1", "a 2", False, False),
        ("a 1 of 20, 3.5e-78", "a 12 of 9, 0.1", True, True),
        ("a 1", "a one", True, False),
        ("a 1\nε 2", "a 3\nε 2", True, True),
        ("a 1\nε 2", "a 3\nε 3", True, False),
        ("head 30f65e78dd4c of 3", "head abcdefabcdef012 of 4", True, True),
        ("bar ━━━╸ 1", "bar ━ 9", True, True),
        (" a b\n         c\nd", " a\n         b\n         c   \nd", False, True),
        ("a b\n         c", "a\n         b c", False, False),
        ("privfed: a\n         b c", "privfed: a b\n         c", False, True),
        ("a b\nc", "a\n  b c", False, False),
        ("", "a", False, False),
        ("a", "", True, False),
    ],
)
def test_outputs_are_compared_as_pages_say(shown, printed, shape, same):
    assert (difference(shown, printed, shape, ("ε",)) == "") is same


def test_lines_of_a_shell_are_commands():
    text = "# a\nprivfed x 'a=[\"b\"]' \\\n  --c d  # e\n\nls && cat f > g\n"
    words = [(command.words, command.into) for command in commands(text)]
    assert words == [
        (("privfed", "x", 'a=["b"]', "--c", "d"), ""),
        (("ls",), ""),
        (("cat", "f"), "g"),
    ]
    (command,) = commands("A=1 B_C='2 3' ls d=4")
    assert command.words == ("ls", "d=4")
    assert command.environment == (("A", "1"), ("B_C", "2 3"))


@every_case("line", ["$ privfed list", "privfed list | cat", "cat < a", "(ls)"])
def test_what_this_shell_does_not_know_is_refused(line):
    with pytest.raises(ValueError):
        list(commands(line))


def test_keys_of_a_command_that_is_not_run_are_looked_up_together():
    together = "cohort.sampler=full cohort.size=0 server.optimizer=mine:Own server.own_key=3"
    assert wrong_overrides(together.split()) == ""
    for wrong in ("cohort.size=0", "server.own_key=3", "servr.lr=1", "server.optimizer=mine"):
        assert wrong_overrides([wrong]) != ""


@every_case(
    "span, wrong",
    [
        ("privfed train --workers N", False),
        ("privfed attack membership RUN --level user", False),
        ("privfed check … --matrix", False),
        ("privfed evaluate [RUN_DIR]", False),
        ("privfed train --worker N", True),
        ("privfed trian", True),
        ("privfed attack inversions RUN", True),
    ],
)
def test_names_within_lines_are_looked_up(span, wrong):
    assert bool(wrong_names(span)) is wrong
    assert list(spans(f"\n# A\n\nwords `{span}`\n")) == [(4, span)]


@every_case(
    "span, wrong",
    [
        ("client.lr", ""),
        ('aggregation.rule = "krum"', ""),
        ("client.privacy", ""),
        ("client.privacy.mechanism", ""),
        ("model.arguments", ""),
        ("run.toml", ""),
        ("run.resume", ""),
        ("torch.nn", ""),
        ("client.learning_rate", "[client] has no key learning_rate"),
        ("server.momentm = 0.9", "[server] has no key momentm (did you mean server.momentum?)"),
        ("client.privacy.mechanisms", "did you mean client.privacy.mechanism?"),
        ("run.resumes", "[run] has no key resumes"),
    ],
)
def test_keys_within_lines_are_looked_up(span, wrong):
    assert wrong in wrong_key(span)
    assert bool(wrong) == bool(wrong_key(span))


def test_a_study_is_parsed_and_not_run(page):
    page.write_text("```console\nprivfed experiment experiments/banded/grid.toml\n```")
    parse(blocks(page)[0])
    page.write_text("```console\npython -m experiments.benchmarks --peers\n```")
    parse(blocks(page)[0])


@pytest.mark.parametrize(
    "line",
    [
        "privfed experiment experiments/banded/gird.toml",
        "privfed experiment --tune experiments/banded/grid.toml",
        "python -m experiments.benchmark",
        "python -m experiments.benchmarks --pears",
        "for study in digits",
    ],
)
def test_a_study_whose_commands_are_wrong_is_caught(page, line):
    page.write_text(f"```console\n{line}\n```")
    with pytest.raises(Failure):
        parse(blocks(page)[0])


def test_outputs_are_written_where_they_differ(page, capsys):
    text = "a\n\n```python\n3\n```\n<!-- block: output -->\n```text\n4\n5\n```\nb\n"
    page.write_text(text)
    assert rewritten(text, play(page)) == text.replace("4\n5\n", "3\n")
    assert main([str(page)]) == 1
    assert main([str(page), "--write"]) == main([str(page)]) == 0
    assert "-4" in capsys.readouterr().err


def test_outputs_are_wrapped_to_the_width_of_a_page():
    told = "for any one client, " * 8
    table = f" meaning   {told[:90].strip()}   \n           {told[90:].strip()}\n rounds    3  \n"
    shown = for_a_page(table)
    assert [len(line) <= 108 for line in shown] == [True] * 3
    assert shown[1].startswith(" " * 11)
    assert difference("\n".join(shown), table) == ""
