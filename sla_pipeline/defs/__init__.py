"""Everything that Dagster sees, loaded by itself: a new asset, check, sensor or schedule is a new file here.

One folder per domain. Wiring, descriptions and metadata belong here; work belongs to the rooms beside this package.
Every run's process imports every file: a slow library (pandas, plots) is imported inside the function that uses it.
"""
