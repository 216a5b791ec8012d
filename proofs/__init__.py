"""Programs that search for a split brain for as long as they are asked to: ``make torture``, ``make exhaust``, …

The tests run the parts of most of them; the gate runs each for a while. The wheel has none of them.
"""
