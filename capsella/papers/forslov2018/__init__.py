"""The tables and figures of Forslöv's thesis, 2018; all read the same runs."""
