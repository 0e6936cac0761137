"""A party of a masked sum that survives crashes: it commits (stores) its state before it answers.

**Guarantee.** Let `store` be durable and atomic when it returns (a temporary file of mode 0600,
fsync, rename, fsync of the folder), and let an interrupted party resume only from the last stored
state, in one process at a time. Then, whenever it is killed, all messages that it sends are those
of one `MaskingClient` that was never killed. Every answer is stored together with the state after
it, so it is the only answer to its step, and is repeated byte for byte. Results that were computed
but not stored were never sent; they are computed afresh.

The row is an exception: it is computed only once, and the party commits *before* it computes it. A
party that is killed between this commit and its masked row counts as a dropout. (If the row were
computed again until no crash occurs, random draws and noise would be conditioned on the absence of
a crash. They would no longer be independent: rules of proof, section 2.)

**Limits.** From the state alone, a process cannot distinguish an old state (a backup or a copied
folder) from the last one. A party that resumes from an old state may vote again, for other
survivors, or compute another row. Other clients must count such a party as colluding with the
server, and its own rows have no guarantee. Therefore no function restores an older state. Moreover,
a party receives `least`, its number of commits at its last answer. The caller records this number
in the site's receipts after `store`, before the answer is sent. An older state is refused as stale.
This check detects a state that was rolled back, but not a ledger that was rolled back with the
state, nor a copy that runs elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from privfed.secure.frames import BadMessage
from privfed.secure.masked.client import MaskingClient
from privfed.secure.masked.client_state import BadState, Progress
from privfed.secure.masked.messages.roster import Invitation, Roster
from privfed.secure.masked.messages.rows import Inbox
from privfed.secure.masked.messages.unmasking import Survivors, Votes
from privfed.secure.masked.messages.wire import Message, decode, encode
from privfed.secure.primitives import KEY

_ORDER: tuple[type[Message], ...] = (Invitation, Roster, Inbox, Survivors, Votes)


class CommittedParty:
    """Gives the answers of `client`, each after `store` has stored the client's state durably.

    The `client` is new, or restored by `MaskingClient.from_bytes`. `store` receives
    `MaskingClient.to_bytes`, including secrets. If `store` raises, or an answer is interrupted
    otherwise, this object answers nothing more; a new object resumes from the stored state. A state
    with more than `least` commits is stored again at once.

    Raises:
      BadState: if the client has committed fewer than `least` times, which its owner recorded: its
        state is out of date.
    """

    def __init__(
        self, client: MaskingClient, store: Callable[[bytes], None], least: int = 0
    ) -> None:
        if client.progress.commits < least:
            raise BadState(
                "stale",
                f"the state has {client.progress.commits} commits, but at least {least} were made "
                "before the last answer",
            )
        self._client, self._store, self._idle = client, store, True
        self._lost = client.progress.row_requested and client.step == _ORDER.index(Inbox)
        if client.progress.commits > least:  # interrupted before its owner recorded the commit
            store(client.to_bytes())

    @property
    def commits(self) -> int:
        """Number of times the state was stored; the site records it before it sends an answer."""
        return self._client.progress.commits

    def handle(self, message: bytes) -> bytes:
        """Returns the answer to the server's next message.

        If the last answered message arrives again, returns the same bytes.

        Raises:
          Aborted: usually a `BadMessage`. The state is unchanged if the bytes are no message, or if
            another message of its type was answered before. If the client refuses the message, the
            session ends.
        """
        if not self._idle:
            raise BadMessage("cut off", "the party stopped before it could commit")
        question, progress = hashlib.sha256(message).digest(), self._client.progress
        if progress.answer and question == progress.question:
            return progress.answer
        decoded = decode(message)
        if type(decoded) in _ORDER[: self._client.step]:
            raise BadMessage(
                "answered already",
                f"another {type(decoded).__name__} was already answered at this step, or this "
                "party has left the session",
            )
        self._idle = False
        self._claim_the_row(decoded)
        answer = self._answer(decoded)
        self._commit(replace(self._client.progress, question=question, answer=answer))
        self._idle = True
        return answer

    def end(self) -> None:
        """Stores a final state, after which the party answers no message and repeats no answer."""
        self._client.end()
        self._lost = True
        self._commit(replace(self._client.progress, question=bytes(KEY), answer=b""))

    def sends_row(self, message: bytes) -> bool:
        """Whether `message` is an `Inbox`, answered by the row. Raises `Aborted` if malformed."""
        return isinstance(decode(message), Inbox)

    def _claim_the_row(self, message: Message) -> None:
        """Stores durably that the row is about to be computed, if `message` is an `Inbox`."""
        if isinstance(message, Inbox) and not self._lost:
            self._commit(replace(self._client.progress, row_requested=True))

    def _answer(self, message: Message) -> bytes:
        try:
            if self._lost:
                raise BadMessage("row lost", "the party was interrupted while its row was computed")
            return encode(self._client.handle(message))
        except Exception:
            self._client.end()
            self._commit(self._client.progress)
            self._idle = True
            raise

    def _commit(self, progress: Progress) -> None:
        self._client.progress = replace(progress, commits=progress.commits + 1)
        self._store(self._client.to_bytes())
