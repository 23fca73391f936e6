"""Measurements. A bench takes its frozen config and gives records; tables and pictures are drawn from records only."""
