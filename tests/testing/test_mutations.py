"""Every mechanism that is taken out of the real code is missed by the simulation. The list: ``proofs/mutations.py``."""

import pytest

from proofs.mutations import MUTATIONS, SEEDS, Mutation

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mechanism_that_is_taken_out_is_missed(mutation: Mutation):
    kinds = (failure.kind for seed in range(SEEDS) if (failure := mutation.run(seed)) is not None)
    assert mutation.finds in kinds, f"{SEEDS} seeds do not miss it: is it still needed, and still taken out?"
