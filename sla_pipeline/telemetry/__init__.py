"""What the pipeline tells about itself: the form of its log lines.

What does not belong here: alerts, and the journal of cycles.
"""
