"""Other people's implementations of the same methods, for comparison; none is a requirement of this project.

Each is imported when it is built. A kernel that comes without projections sits between the linear maps of ours, and
gates, decays and strengths that ours computes from its input are computed in the peer by maps of the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from cab.efficiency.peers import dense, recurrent, sparse
from cab.efficiency.peers.peer import Peer, PeerSubject
from cab.efficiency.subjects import AttentionSubject

__all__ = ["PEERS", "Peer", "PeerSubject", "find_peers"]

PEERS = (*dense.PEERS, *sparse.PEERS, *recurrent.PEERS)


def find_peers(subjects: Iterable[AttentionSubject]) -> tuple[list[PeerSubject], list[str]]:
    """Peers of these attentions that are installed, and lines about those that are not or do not exist."""
    found, notes, without = [], [], []
    for subject in subjects:
        peers = [peer for peer in PEERS if peer.attention == subject.name and peer.exists_here]
        if not peers:
            without.append(subject.label)
        for peer in peers:
            if peer.is_installed:
                found.append(PeerSubject(peer, subject))
            else:
                notes.append(f"{subject.label}: {peer.package} is not installed (pip install {peer.package})")
    notes = list(dict.fromkeys(notes))  # a package may have several forms of a method
    if without:
        notes.append(f"no implementation that pip can install is known for: {', '.join(without)}")
    return found, notes
