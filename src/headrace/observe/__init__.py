"""What headrace tells of itself: logs and metrics (later traces and a timeline).

Metric names are a contract: tests/observe holds the list, dashboards and autoscalers query them.
Imports core only; never NumPy, a web framework or a metrics library. Nothing is set up at import.
"""
