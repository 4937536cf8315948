"""A plugin that cannot even be imported."""

raise ZeroDivisionError
