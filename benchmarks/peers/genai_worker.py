"""Runs in OpenVINO's environment: one line {"prompts": [[id...]...], "num_tokens": n} in, one line out per batch."""

import json
import sys

import numpy as np
import openvino as ov
import openvino_genai as genai


def main(model: str, num_threads: int) -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": num_threads})
    answer({"version": genai.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = request["num_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        prompts = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in request["prompts"]]
        results = pipeline.generate(prompts, [config] * len(prompts))
        answer({"lengths": [len(result.m_generation_ids[0]) for result in results]})


def answer(values: dict) -> None:
    print(json.dumps({"peer": "openvino"} | values), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
