"""Tiny random models of transformers, of many architectures: nothing is downloaded."""

VOCABULARY, LENGTH, CLASSES = 40, 8, 3
_SIZE = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
_BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
}  # fmt: skip
_DISTILBERT = {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}
_ONE_KEY = {"num_key_value_heads": 1, "head_dim": 8}

SOUND = {
    "GPT2LMHeadModel": _GPT2,
    "GPT2ForSequenceClassification": _GPT2,
    "GPTNeoForCausalLM": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]]},
    "GPTNeoXForCausalLM": {},
    "LlamaForCausalLM": _ONE_KEY,
    "LlamaForSequenceClassification": _ONE_KEY,
    "MistralForCausalLM": _ONE_KEY,
    "Qwen2ForCausalLM": _ONE_KEY,
    "GemmaForCausalLM": _ONE_KEY,
    "PhiForCausalLM": {},
    "OPTForCausalLM": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "BloomForCausalLM": {"n_layer": 2, "n_head": 2},
    "BertForSequenceClassification": {},
    "BertForMaskedLM": {},
    "BertForTokenClassification": {},
    "RobertaForSequenceClassification": {},
    "AlbertForSequenceClassification": {"embedding_size": 16},
    "ElectraForSequenceClassification": {"embedding_size": 16},
    "DistilBertForSequenceClassification": _DISTILBERT,
    "T5ForConditionalGeneration": _T5,
    "BartForConditionalGeneration": _BART,
}
"""Classes of models, and the keys of each configuration in addition to the common size."""
IDS = {"tokens": VOCABULARY, "shape": [LENGTH]}
MASK = {"mask": True, "shape": [LENGTH]}


def tiny(name, seed=0):
    """The model of the class `name` with random weights, without dropout."""
    import torch
    import transformers

    kind = getattr(transformers, name)
    torch.manual_seed(seed)
    keys = {**_SIZE, "decoder_start_token_id": 0, **SOUND[name]}
    if "Classification" in name:
        keys["num_labels"] = CLASSES
    return kind(kind.config_class(**keys)).eval()


def declared(name):
    """The keys of [data] that suit the model: inputs, and labels for each example or position."""
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    if name.endswith("ForSequenceClassification"):
        return {"inputs": inputs, "classes": CLASSES}
    if name.endswith("ForConditionalGeneration"):
        inputs["decoder_input_ids"] = IDS
    elif not name.endswith(("MaskedLM", "TokenClassification")):
        return {"inputs": inputs, "next_token": "input_ids"}
    classes = CLASSES if name.endswith("TokenClassification") else VOCABULARY
    return {"inputs": inputs, "classes": classes, "label_shape": [LENGTH]}
