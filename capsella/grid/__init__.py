"""The only loop over runs: rows × seeds × rates."""
