"""What communication costs: measured size -> time tables, fitted lines, and what two operations in flight do to each other."""

from dtprof.model.cost.table import CostTable as CostTable
from dtprof.model.cost.table import from_calibration as from_calibration
from dtprof.model.cost.table import from_spans as from_spans
