"""The Jinja environment in which chat templates run, and the limits it keeps.

Owns everything that imports jinja2; reached only through ChatTemplate, which imports it at the first render.
Never imports anything else of headrace.
"""
