"""Types that every other package shares: errors, sampling parameters, requests, schedules, step outputs.

Imports nothing of headrace, no NumPy and no tensor library.
"""
