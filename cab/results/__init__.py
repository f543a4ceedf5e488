"""Tables made from results, own and published."""
