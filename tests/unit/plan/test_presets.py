"""Dimensions of known models against the parameter counts that were published with them."""

import pytest

from dtprof.errors import InputError
from dtprof.plan.presets import MODELS, find, preset
from dtprof.plan.sizes import active_params, head_params, layer_params, total_params

# thousand millions, as published: model cards and papers; LLM-Foundry prints them to the last one
PUBLISHED = {
    "MPT-13b": 12.853954560, "MPT-70b": 64.862437376, "Llama 2 7B": 6.74, "Llama 2 13B": 13.02, "Llama 2 70B": 68.98,
    "Llama 3 8B": 8.03, "Llama 3 70B": 70.55, "Llama 3 405B": 405.9, "Llama 3.2 1B": 1.24, "Llama 3.2 3B": 3.21,
    "Mixtral 8x7B": 46.7, "Mixtral 8x22B": 140.6, "DeepSeek-V3": 671.0, "DeepSeek-V2": 236.0, "DeepSeek-V2-Lite": 15.7,
    "Kimi K2": 1026.0, "Moonlight 16B-A3B": 15.96, "Qwen3 30B-A3B": 30.5, "Qwen3 235B-A22B": 235.0, "Qwen3 8B": 8.19,
    "Qwen3 32B": 32.76, "Qwen2.5 7B": 7.62, "Qwen2.5 72B": 72.7, "GPT-OSS 20B": 20.9, "GPT-OSS 120B": 116.8,
    "GPT-3 175B": 174.6, "GPT 530B": 529.6, "GPT 1T": 1008.0, "GPT 1.7B": 1.65,
    "BERT-large": 0.335, "GPT-2 1.5B": 1.558, "GPT-NeoX 20B": 20.55,
    "BLOOM 176B": 176.2, "InternLM 7B": 7.32, "Llama-like 1.34B": 1.34, "Llama-like 80B": 80.0, "Nemotron-4 340B": 340.0,
    "Mistral 7B": 7.24, "CodeLlama 34B": 33.74,
}  # fmt: skip
ACTIVE = {"DeepSeek-V3": 37.0, "Mixtral 8x7B": 12.9, "Qwen3 235B-A22B": 22.0, "Qwen3 30B-A3B": 3.3, "GPT-OSS 120B": 5.1}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_those_published(name, billions):
    assert total_params(preset(name)) / 1e9 == pytest.approx(billions, rel=0.006)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_parameters_of_one_token_are_those_published(name, billions):
    # some count the embedding with them
    assert active_params(preset(name)) / 1e9 == pytest.approx(billions, rel=0.09)


def test_llm_foundry_counts_to_the_last_parameter():
    assert total_params(preset("MPT-70b")) == pytest.approx(64862437376, rel=1e-5)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("LLAMA3_70B", "Llama 3 70B"),
        ("LLAMA3.1_405B", "Llama 3 405B"),
        ("Llama 3.1 8B", "Llama 3 8B"),
        ("Llama3 70B 2-node", "Llama 3 70B"),
        ("meta-llama/Llama-3.1-8B", "Llama 3 8B"),
        ("Qwen3_30B_a3B (tokendrop)", "Qwen3 30B-A3B"),
        ("DeepSeekV3 (w/ MTP)", "DeepSeek-V3"),
        ("Kimi_K2", "Kimi K2"),
        ("BERT-Large", "BERT-large"),
        ("gpt3-175b", "GPT-3 175B"),
        ("Moonlight-16B-A3B (MLA+MoE)", "Moonlight 16B-A3B"),
        ("Llama2 7b", "Llama 2 7B"),
    ],
)
def test_names_as_people_write_them(called, name):
    assert find(called) is MODELS[name]


def test_an_unknown_name_gets_the_nearest_ones():
    assert find("ResNet-50 v1.5") is None
    with pytest.raises(InputError, match="Llama 3 8B"):
        preset("Llama 3 9B")


def test_every_preset_says_where_its_dimensions_stand_and_no_two_are_found_by_one_name():
    assert all(model.source for model in MODELS.values())
    assert all(find(name) is model for name, model in MODELS.items())


def test_layers_of_a_mixture():
    model = preset("DeepSeek-V3")
    assert [model.has_experts(layer) for layer in range(5)] == [False, False, False, True, True]
    assert layer_params(model, 0) == layer_params(model, 0, active=True)
    assert layer_params(model, 3) > 10 * layer_params(model, 3, active=True)


def test_a_tied_output_matrix_counts_once():
    assert head_params(preset("GPT-2 117M")) == 2 * 768
