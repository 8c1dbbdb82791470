"""A trained run as one HTML page that needs neither network nor server: images, poses, routing and a live decoder."""

from capsella.share.shared import MOST_IMAGES, MOST_MEGABYTES, Shared, share_runs
