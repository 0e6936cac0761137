"""Models of transformers: all sound ones train, as the library computes; adapters go to peft."""

import copy
import json

import numpy as np
import pytest
import torch
from lanes import mostly_slow
from tiny_transformers import (
    CLASSES,
    IDS,
    LENGTH,
    MASK,
    SOUND,
    VOCABULARY,
    declared,
    tiny,
)
from torch import nn

import privfed
from privfed.core.streams import Streams
from privfed.data.federation import NO_LABEL, Examples
from privfed.data.inputs import Input, by_name, synthetic_inputs
from privfed.models.build import build_network
from privfed.models.given_module import GivenModule
from privfed.models.losses.cross_entropy import CrossEntropy
from privfed.models.start import Lora, Start

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")

CLIENTS = 16
FEW = {
    "cohort": {"size": 6},
    "rounds": 2,
    "privacy": {"noise_multiplier": 0.5, "delta": 1e-2, "clip": 0.1},
    "progress": False,
}
INPUTS = {"input_ids": Input(**IDS), "attention_mask": Input(**MASK)}
WORDS = ["[PAD]", "[UNK]", *(f"w{n}" for n in range(VOCABULARY - 2))]


def network(name, module=None, **start):
    keys = declared(name)
    inputs = {key: Input(**each) for key, each in keys["inputs"].items()}
    positions = [LENGTH] if {"label_shape", "next_token"} & keys.keys() else []
    y = torch.zeros(4, *positions, dtype=torch.int64)
    examples = Examples(
        synthetic_inputs(inputs, 4), y, keys.get("classes", VOCABULARY), inputs=inputs
    )
    recipe = GivenModule.of(tiny(name) if module is None else module)()
    seed = Streams(0, simulated=True).at("init")
    return build_network(
        recipe, examples, Start(**start), CrossEntropy(), seed, torch.device("cpu")
    )


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_of_any_architecture_is_not_refused(name):
    net = network(name)
    assert not net.random
    assert net.outputs(net.initial_params, synthetic_inputs(net.form.inputs, 2)).isfinite().all()


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM"])
def test_the_loss_and_its_gradient_are_those_of_the_library(name):
    """With padding: its ids, and the labels there, change neither."""
    net, module = network(name), tiny(name)
    x, length = synthetic_inputs(INPUTS, 1), 5
    values = by_name(x, INPUTS)
    values["attention_mask"][:] = torch.arange(LENGTH) < length
    values["input_ids"][:, length:] = 3
    y = torch.randint(0, VOCABULARY, (1, LENGTH))
    y[:, length - 1 :] = NO_LABEL
    labels = y.masked_fill(y == NO_LABEL, -100)
    if "Masked" not in name:  # the library shifts labels itself
        labels = torch.cat([torch.full((1, 1), -100), labels[:, :-1]], 1)
    loss = module(**values, labels=labels).loss
    loss.backward()
    packed = torch.cat([values["attention_mask"], values["input_ids"]], 1)
    torch.testing.assert_close(net.losses(net.initial_params, packed, y)[0], loss)
    named = dict(module.named_parameters())
    gradient = net.gradient(net.initial_params, packed, y)
    for key, part in net.shapes.views(gradient).items():
        torch.testing.assert_close(part, named[key].grad, rtol=1e-4, atol=1e-6)
    values["input_ids"][:, length:] = 7
    other = torch.cat([values["attention_mask"], values["input_ids"]], 1)
    torch.testing.assert_close(net.losses(net.initial_params, other, y)[0], loss)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.resize_token_embeddings(VOCABULARY - 1), "ids go up to 39"),
        (lambda m: m.resize_token_embeddings(VOCABULARY + 1), "need 40 outputs"),
        (lambda m: nn.init.constant_(m.lm_head.weight, float("inf")), "not all finite"),
    ],
)
def test_a_vocabulary_or_weights_that_do_not_fit_are_refused(change, reason):
    module = tiny("GPT2LMHeadModel")
    change(module)
    with pytest.raises(privfed.Refused, match=reason):
        network("GPT2LMHeadModel", module)


def test_a_model_with_a_padding_token_is_trained_one_client_at_a_time():
    assert "padding_idx" in network("LlamaForCausalLM").unstackable
    assert not network("GPT2LMHeadModel").unstackable


def test_frozen_weights_do_not_move_and_tied_ones_move_together():
    net = network("GPT2LMHeadModel", frozen=["lm_head"])
    assert "transformer.wte.weight" not in net.shapes.names
    assert "lm_head.weight" not in net.shapes.names
    assert "transformer.wte.weight" in network("GPT2LMHeadModel").shapes.names


def tokenizer():
    """A tokenizer of words, as a user of transformers holds one."""
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]"
    )


def sayings(count, rng):
    return [
        " ".join(f"w{n}" for n in rng.integers(0, 38, rng.integers(1, 12))) for _ in range(count)
    ]


def of_clients(labelled, **more):
    rng = np.random.default_rng(0)

    def held(count):
        texts = sayings(count, rng)
        return (texts, rng.integers(0, CLASSES, count)) if labelled else texts

    kinds = {"classes": CLASSES} if labelled else {}
    people = {f"c{k}": held(2) for k in range(CLIENTS)}
    return privfed.Texts(
        people, tokenizer=tokenizer(), window=LENGTH, clients=CLIENTS, test=held(5), **kinds, **more
    )


def test_both_kinds_of_tokenizers_and_a_function_give_the_same_examples():
    texts = sayings(6, np.random.default_rng(1))
    declared = {"window": LENGTH, "clients": 1, "vocabulary": VOCABULARY}
    given = [
        tokenizer(),
        tokenizer().backend_tokenizer,
        lambda text: tokenizer()(text)["input_ids"],
    ]
    encoded = [
        privfed.Texts({"a": texts}, tokenizer=each, **declared).encoded(texts) for each in given
    ]
    for other in encoded[1:]:
        assert np.array_equal(encoded[0]["input_ids"], other["input_ids"])
        assert np.array_equal(encoded[0]["attention_mask"], other["attention_mask"])


def test_a_vocabulary_below_that_of_the_tokenizer_is_refused():
    with pytest.raises(privfed.Refused, match="but the tokenizer has 40 tokens"):
        of_clients(False, vocabulary=VOCABULARY - 1)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "DistilBertForSequenceClassification"])
def test_a_model_trains_over_strings_resumes_and_is_itself_again(name, tmp_path):
    people, module = of_clients("Classification" in name), tiny(name)
    before = copy.deepcopy(module.state_dict())
    run = privfed.train(people, model=module, out=tmp_path / "run", **FEW)
    assert run.guarantee.epsilon > 0
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())
    encoded = people.encoded(["w1 w2 w3"])
    assert run.predict(encoded).num_rows == 1
    out = run.model(**{key: torch.from_numpy(value) for key, value in encoded.items()})
    assert type(run.model) is type(module)
    assert out.logits.shape[-1] == (CLASSES if "Classification" in name else VOCABULARY)
    run.model.save_pretrained(tmp_path / "saved")
    again = type(module).from_pretrained(tmp_path / "saved")
    for ours, theirs in zip(run.model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    run.export(tmp_path / "net.safetensors")
    assert len(privfed.load(run.path, model=module, data=people).resume(rounds=3).ledger) == 3


ADAPTED = {
    "GPT2LMHeadModel": {"targets": ["*.c_attn", "*.mlp"]},
    "LlamaForCausalLM": {"targets": ["*.q_proj", "*.v_proj"], "freeze_a": False, "alpha": 3.0},
    "BertForSequenceClassification": {"targets": ["*.query"], "trained": ["classifier"]},
}


@pytest.mark.parametrize(
    "name", mostly_slow(ADAPTED, "GPT2LMHeadModel", "BertForSequenceClassification")
)
def test_adapters_are_read_by_peft_and_read_back(name, tmp_path):
    peft = pytest.importorskip("peft")
    people, module = of_clients("Classification" in name), tiny(name)
    model = {"name": module, "lora": {"rank": 2, **ADAPTED[name]}}
    lr = {"client": {"lr": 5.0}}
    run = privfed.train(people, model=model, out=tmp_path / "run", **FEW, **lr)
    run.export(tmp_path / "adapters", adapters=True)
    with pytest.raises(privfed.Refused, match="exists"):
        run.export(tmp_path / "adapters", adapters=True)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(module), tmp_path / "adapters").eval()
    values = by_name(synthetic_inputs(INPUTS, 6), INPUTS)
    with torch.no_grad():
        ours, start = run.model(**values).logits, module(**values).logits
        torch.testing.assert_close(theirs(**values).logits, ours, rtol=1e-4, atol=1e-5)
    assert (ours - start).abs().max() > 1e-4
    theirs.save_pretrained(tmp_path / "again")
    for folder in ("adapters", "again"):
        net = network(name, module, init=str(tmp_path / folder))
        packed = torch.cat([values["attention_mask"], values["input_ids"]], 1)
        back = net.outputs(net.initial_params, packed)
        torch.testing.assert_close(back, ours, rtol=1e-4, atol=1e-5)
    start = {"name": module, "init": str(tmp_path / "adapters")}
    with pytest.raises(privfed.Refused, match="the privacy loss of that training counts as well"):
        privfed.train(people, model=start, temporary=True, **FEW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_dora": True}, "adapters are not plain LoRA .use_dora."),
        ({"peft_type": "IA3"}, "not plain LoRA"),
        ({"init_lora_weights": "pissa"}, r"plain LoRA \(init_lora_weights\)"),
        ({"kind_of_next_year": {"a": 1}}, r"plain LoRA \(kind_of_next_year\)"),
        ({"init_lora_weights": 3}, r"plain LoRA \(init_lora_weights\)"),
        ({"r": None}, "cannot be read as adapters"),
        ({"r": 0}, "cannot be read as adapters"),
        (None, "cannot be read as adapters"),
    ],
)
def test_adapters_of_another_kind_or_model_are_refused(changes, reason, tmp_path):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    peft.get_peft_model(tiny("GPT2LMHeadModel"), lora).save_pretrained(tmp_path)
    network("GPT2LMHeadModel", init=str(tmp_path))
    with pytest.raises(privfed.Refused, match="adapters are of another model"):
        network("LlamaForCausalLM", init=str(tmp_path))
    path = tmp_path / "adapter_config.json"
    changed = [] if changes is None else {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(changed))
    with pytest.raises(privfed.Refused, match=reason):
        network("GPT2LMHeadModel", init=str(tmp_path))


@pytest.mark.parametrize("init", [True, False, "gaussian", "pissa", "olora"])
def test_adapters_that_are_initialised_otherwise_are_computed_as_by_peft_or_refused(init, tmp_path):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=init
    )
    theirs = peft.get_peft_model(tiny("GPT2LMHeadModel"), lora).eval()
    theirs.save_pretrained(tmp_path)
    if init in ("pissa", "olora"):
        with pytest.raises(privfed.Refused, match=r"plain LoRA \(init_lora_weights\)"):
            network("GPT2LMHeadModel", init=str(tmp_path))
        return
    values = by_name(synthetic_inputs(INPUTS, 6), INPUTS)
    net = network("GPT2LMHeadModel", init=str(tmp_path))
    packed = torch.cat([values["attention_mask"], values["input_ids"]], 1)
    with torch.no_grad():
        expected = theirs(**values).logits
    torch.testing.assert_close(
        net.outputs(net.initial_params, packed), expected, rtol=1e-4, atol=1e-5
    )


def test_an_adapter_of_a_tied_weight_is_refused():
    with pytest.raises(privfed.Refused, match="is tied to another parameter"):
        network("GPT2LMHeadModel", lora=Lora(rank=2, targets=["lm_head"]))
