"""Answer the recipe's questions that it did not train on, greedily: in the strangers' environment.

python held_out.py PATH COUNT          prints the share of right answers; PATH: sampler weights, or `base`
"""

from __future__ import annotations

import sys

import datasets
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.recipes.rl_loop import get_reward
from tinker_cookbook.tokenizer_utils import get_tokenizer

from tests.plugins.tinker.strangers.recipe import NAME

SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
PREFIX = [
    {"role": "user", "content": "How many r's are in strawberry?" + SUFFIX},
    {
        "role": "assistant",
        "content": "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r "
        "10) y. We have r's at positions 3, 8, and 9. \\boxed{3}",
    },
]
"""The words of the recipe, which has them inside its main function."""


def main(path: str, count: int) -> float:
    """Return the share of right answers to the first questions of the other split."""
    service = tinker.ServiceClient()
    sampler = service.create_sampling_client(**({"base_model": NAME} if path == "base" else {"model_path": path}))
    renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(NAME))
    rows = datasets.load_dataset("openai/gsm8k", "main")["test"].select(range(count))
    greedy = tinker.types.SamplingParams(max_tokens=32, temperature=0.0, stop=renderer.get_stop_sequences())
    futures = [
        sampler.sample(
            prompt=renderer.build_generation_prompt([*PREFIX, {"role": "user", "content": question + SUFFIX}]),
            num_samples=1,
            sampling_params=greedy,
        )
        for question in rows["question"]
    ]
    rewards = []
    for future, answer in zip(futures, rows["answer"], strict=True):
        message, _ = renderer.parse_response(future.result().sequences[0].tokens)
        rewards.append(get_reward(renderers.get_text_content(message), answer))
    return sum(rewards) / len(rewards)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
