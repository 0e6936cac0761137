"""A party of a masked sum that survives a crash: it commits its state before it answers.

**What holds.** Let `store` be durable and atomic when it returns (a temporary file of mode 0600,
fsync, rename, fsync of the folder), and let a party that was cut off go on only from what was
stored last, in one process at a time. Then, whenever it is killed, all that ever leaves it is what
one `MaskingClient` that was never killed would have answered: every answer was stored with the
state after it, so that it is the only one to its step, and is given again byte for byte. What was
computed and not stored never left; it is computed afresh.

Except the row: it is asked for once in a lifetime, which is committed *before* it is asked for. A
party that is killed between that and its masked row has dropped out. (Asked for until that
succeeds, coins and noise would be those with which nothing crashed, and no longer independent:
PRIVACY, section 2.)

**What does not hold.** An old state, a backup or a copied folder, is as good as the last to
whoever holds nothing else: from it a party votes again, for other survivors, or is asked for
another row. Such a party is to the others one of those who collude with the server, and of its own
rows nothing is promised. Nothing restores a state, therefore; and a party is told how often it had
committed when it last answered (`least`, which its owner writes to its ledger of answers after
`store`, before the answer leaves). A state from before is refused as stale. This sees a state that
was rolled back, and neither a folder of which the ledger was rolled back with it nor a copy that
runs elsewhere.
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
    """Answers for `client`, new or from `MaskingClient.from_bytes`, what `store` has committed.

    `store` takes `MaskingClient.to_bytes`, secrets and all. Where it raises, or anything else stops
    an answer half way, this object answers nothing more: another goes on from what was stored.
    Raises `BadState` for a client that has committed fewer than `least` times.
    """

    def __init__(
        self, client: MaskingClient, store: Callable[[bytes], None], least: int = 0
    ) -> None:
        if client.progress.commits < least:
            raise BadState(
                "stale",
                f"a state of {client.progress.commits} commits, where at least {least} were made "
                "before the last answer",
            )
        self._client, self._store, self._idle = client, store, True
        self._lost = client.progress.row_asked and client.step == _ORDER.index(Inbox)
        if client.progress.commits > least:  # cut off before its owner wrote that down
            store(client.to_bytes())

    @property
    def commits(self) -> int:
        """How often it has committed: what its owner writes down before an answer leaves."""
        return self._client.progress.commits

    def handle(self, message: bytes) -> bytes:
        """The answer to the server's next message; the last one's again, byte for byte.

        Raises `Aborted`, mostly a `BadMessage`, for what is no message, which changes nothing; for
        another message of a step that was answered, which changes nothing either; and for what the
        client refuses, which ends the session for it.
        """
        if not self._idle:
            raise BadMessage("cut off", "a party that was stopped before it could commit")
        question, progress = hashlib.sha256(message).digest(), self._client.progress
        if progress.answer and question == progress.question:
            return progress.answer
        asked = decode(message)
        if type(asked) in _ORDER[: self._client.step]:
            raise BadMessage(
                "answered already",
                f"another {type(asked).__name__}, of a step that is answered, or of a session that "
                "this party has left",
            )
        self._idle = False
        self._claim_the_row(asked)
        answer = self._answer(asked)
        self._commit(replace(self._client.progress, question=question, answer=answer))
        self._idle = True
        return answer

    def end(self) -> None:
        """Commit that it answers nothing more, not even what it answered last."""
        self._client.end()
        self._lost = True
        self._commit(replace(self._client.progress, question=bytes(KEY), answer=b""))

    def _claim_the_row(self, asked: Message) -> None:
        """Commit that the row is asked for, where `asked` leads to that."""
        if isinstance(asked, Inbox) and not self._lost:
            self._commit(replace(self._client.progress, row_asked=True))

    def _answer(self, asked: Message) -> bytes:
        try:
            if self._lost:
                raise BadMessage("row lost", "a party that was cut off while its row was made")
            return encode(self._client.handle(asked))
        except Exception:
            self._client.end()
            self._commit(self._client.progress)
            self._idle = True
            raise

    def _commit(self, progress: Progress) -> None:
        self._client.progress = replace(progress, commits=progress.commits + 1)
        self._store(self._client.to_bytes())
