"""Who runs in the next step, and how many tokens each: queue, token budget, policy, preemption.

Turns requests into Schedules and step results into token deltas. Decides on numbers alone: no tensors, no I/O,
no clock, so that the same arrivals always give the same steps.
Imports core, config, cache and observe; never NumPy or a tensor library.
"""

from headrace.scheduler.limits import SchedulerLimits
from headrace.scheduler.scheduler import Scheduler
from headrace.scheduler.stats import SchedulerStats

__all__ = ["Scheduler", "SchedulerLimits", "SchedulerStats"]
