"""Third-party implementations of the same methods, for comparison; none is required.

Packages are imported when an implementation is built. Kernels without projections are placed between the linear maps of
our layers. Gates, decays and strengths are computed by maps of the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from cab.efficiency.peers import dense, recurrent, sparse
from cab.efficiency.peers.peer import Peer, PeerSubject
from cab.efficiency.subjects import AttentionSubject

__all__ = ["PEERS", "Peer", "PeerSubject", "find_peers"]

PEERS = (*dense.PEERS, *sparse.PEERS, *recurrent.PEERS)


def find_peers(subjects: Iterable[AttentionSubject]) -> tuple[list[PeerSubject], list[str]]:
    """Return the installed third-party implementations of the attentions, and notes about missing ones."""
    found, notes, without = [], [], []
    for subject in subjects:
        peers = [peer for peer in PEERS if peer.attention == subject.name and peer.exists_here]
        if not peers:
            without.append(subject.label)
        for peer in peers:
            if peer.is_installed:
                found.append(PeerSubject(peer, subject))
            else:
                notes.append(f"{subject.label}: {peer.package} is not installed; run `pip install {peer.package}`")
    notes = list(dict.fromkeys(notes))  # a package may provide several implementations
    if without:
        notes.append(f"no third-party implementation is known for: {', '.join(without)}")
    return found, notes
