"""Figures as SVG text: pure functions from values to a figure, shared by the one-file report and the dashboard.

Every mark has a title, every figure a label; lengths start at zero; no part is drawn under one pixel.
"""
