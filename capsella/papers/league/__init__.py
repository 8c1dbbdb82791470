"""The league: every registered routing in one network, on the same images, with the same search. Ours, of no paper."""
