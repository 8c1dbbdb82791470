"""Heinsen 2019, "An Algorithm for Routing Capsules in All Domains"."""
