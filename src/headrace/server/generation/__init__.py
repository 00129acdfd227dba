"""From a request's fields to its outputs: prompts, sampling parameters, running generations, logprobs, accounts.

Everything here is the same for streamed and whole answers. Knows no route and writes no response.
"""
