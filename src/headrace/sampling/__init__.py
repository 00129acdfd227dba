"""What sampling means: the recipe from logits to a token, stage by stage, and its stateless noise.

The NumPy reference of the native sampler (native/src/sampler.cpp), obviously right rather than fast.
Never imports the runner, the engine or the native module.
"""

from headrace.sampling.recipe import SampleSettings, TokenReport, report, sample
from headrace.sampling.rng import gumbel_noise

__all__ = ["SampleSettings", "TokenReport", "gumbel_noise", "report", "sample"]
