/* The hand-over of one room, for spin. The moves of both sides are the rows SENDER(from, event, to) and
 * RECEIVER(from, event, to); transfer/lifecycle/states.py carries the same rows and a test compares them. The return
 * path is pull.pml's, several hand-overs of one request are retry.pml's.
 *
 * Modelled: a gateway's call and the receiver's Reserve in either order, with a deadline; the control stream
 * as two FIFO channels that may be cut at any point; a unary abort that may be sent twice; one-sided writes
 * that land at any later time, also after their writer died; crash of either side at any point; a partition,
 * after which only the lease ends the writer's right to post; transport faults; a client that cancels; bytes
 * that land damaged; with EARLY, a step of the receiver's own, which writes into the granted ids as well.
 * Pictures are asked for once; their pieces come, or never.
 * Not modelled: queue progress beyond one message, several rooms, durations.
 *
 * Checked: no write lands in ids that have a new owner; nothing is published and no second token is emitted
 * before every window landed; Ready at most once; both sides end in every run (no deadlock, no cycle).
 *
 * Mutations, each of which must be found: NO_FENCE, NO_DRAIN, NO_LEASE, NO_VERIFY, NO_STEP_END.
 */
#define WINDOWS 2

mtype:sender_state = { S_IDLE, S_PARKED, S_QUEUED, S_AWAITING_MEDIA, S_ACCEPTED, S_STREAMING, S_READY, S_HOLDING,
                       S_DRAINING, S_DONE, S_REFUSED, S_ENDED };
mtype:receiver_state = { R_NEW, R_RESERVED, R_ACCEPTED, R_GRANTED, R_READY, R_VERIFYING,
                         R_COMMITTED, R_QUARANTINED, R_ENDED };
mtype = { reserve, grant, abort, queued, wanted, accepted, refused, ready, done, drained };

chan up = [3] of { mtype };
chan down = [6] of { mtype };
chan rpc_up = [2] of { bit };
chan rpc_down = [2] of { bit };
chan pieces = [1] of { bit }; /* the pictures, by a call of their own */

mtype:sender_state sender = S_IDLE;
mtype:receiver_state receiver = R_NEW;

bool gateway_called;
bool cut;                /* the stream broke: both sides will see it */
bool partitioned;        /* nothing but time passes between the two */
bool lease = true;       /* the writer may post */
bool sender_dead, receiver_dead;
byte posted, in_flight, landed;
bool damaged;            /* a window landed with wrong bytes */
bool reused;             /* the granted ids have a new owner */
bool published;
bool stepping;           /* an early step may write into the granted ids */
byte readies, tokens;

#define SENDER(from, event, to) assert(sender == S_##from); sender = S_##to
#define RECEIVER(from, event, to) assert(receiver == R_##from); receiver = R_##to

#define SENDER_OVER (sender_dead || sender == S_DONE || sender == S_REFUSED || sender == S_ENDED)
#define RECEIVER_OVER (receiver_dead || receiver == R_COMMITTED || receiver == R_ENDED)
#define MAY_POST (sender == S_STREAMING || sender == S_READY)

#ifdef NO_DRAIN
#define QUIET true
#else
#define QUIET (in_flight == 0)
#endif

#ifdef NO_STEP_END
#define EARLY
#define STEP_ENDED true
#else
#define STEP_ENDED (!stepping)
#endif

#ifdef NO_LEASE
#define MAY_STILL_POST true
#else
#define MAY_STILL_POST lease
#endif

#ifdef NO_FENCE
#define FENCE_HOLDS true
#else
/* Proof of death, after what was under way has settled; or a lease that ran out, plus the retry limit. */
#define FENCE_HOLDS ((sender_dead || !lease) && in_flight == 0)
#endif

inline stop_sender()
{
    if
    :: sender == S_IDLE -> SENDER(IDLE, STOP, ENDED)
    :: sender == S_PARKED -> SENDER(PARKED, STOP, ENDED)
    :: sender == S_QUEUED -> SENDER(QUEUED, STOP, DRAINING)
    :: sender == S_AWAITING_MEDIA -> SENDER(AWAITING_MEDIA, STOP, DRAINING)
    :: sender == S_ACCEPTED -> SENDER(ACCEPTED, STOP, DRAINING)
    :: sender == S_STREAMING -> SENDER(STREAMING, STOP, DRAINING)
    :: sender == S_READY -> SENDER(READY, STOP, DRAINING)
    :: sender == S_HOLDING -> SENDER(HOLDING, STOP, DRAINING)
    :: sender == S_DRAINING -> SENDER(DRAINING, STOP, DRAINING)
    :: sender == S_DONE -> SENDER(DONE, STOP, DONE)
    :: sender == S_REFUSED -> SENDER(REFUSED, STOP, REFUSED)
    :: sender == S_ENDED -> SENDER(ENDED, STOP, ENDED)
    fi
}

/* On the stream a message is sent if the stream still stands; the peer may or may not see it. */
inline tell_receiver(message) { if :: !cut -> down!message :: cut fi }
inline tell_sender(message) { if :: !cut -> up!message :: cut fi }

proctype Sender()
{
    bool reserved, rpc_owed, abort_owed, produced, faulted, asked;
end:
    do
    /* Rendezvous, in either order. */
    :: atomic { sender == S_IDLE && gateway_called -> SENDER(IDLE, ARRIVE, PARKED) }
    :: atomic { sender == S_IDLE && !cut && up?[reserve] -> up?reserve; reserved = true;
                SENDER(IDLE, ARRIVE, PARKED) }
    :: atomic { sender == S_PARKED && !reserved && !cut && up?[reserve] -> up?reserve;
                reserved = true }
    :: atomic { sender == S_PARKED && reserved && gateway_called -> SENDER(PARKED, MEET, QUEUED);
                tell_receiver(queued) }
    :: atomic { sender == S_PARKED -> SENDER(PARKED, EXPIRE, ENDED);
                if :: reserved -> tell_receiver(refused) :: !reserved fi }
    :: atomic { SENDER_OVER && !reserved && up?[reserve] -> up?reserve; reserved = true;
                tell_receiver(refused) }

    /* The engine. */
    :: atomic { sender == S_QUEUED && !asked -> asked = true;
                SENDER(QUEUED, WANT_MEDIA, AWAITING_MEDIA); tell_receiver(wanted) }
    :: atomic { sender == S_AWAITING_MEDIA && pieces?[1] -> pieces?1;
                SENDER(AWAITING_MEDIA, MEDIA, QUEUED) }
    :: atomic { sender == S_AWAITING_MEDIA -> SENDER(AWAITING_MEDIA, REFUSE, REFUSED);
                tell_receiver(refused) }
    /* No piece came in time. The end is said as a drain. */
    :: atomic { sender == S_AWAITING_MEDIA -> abort_owed = true; stop_sender() }
    :: atomic { sender == S_QUEUED -> SENDER(QUEUED, ACCEPT, ACCEPTED); tell_receiver(accepted) }
    :: atomic { sender == S_QUEUED -> SENDER(QUEUED, REFUSE, REFUSED); tell_receiver(refused) }
    :: atomic { sender == S_ACCEPTED && up?[grant] -> up?grant;
                SENDER(ACCEPTED, GRANT, STREAMING) }
    :: atomic { MAY_POST && MAY_STILL_POST && posted < WINDOWS -> posted++; in_flight++ }
    :: atomic { sender == S_STREAMING && !produced -> produced = true;
                SENDER(STREAMING, TOKEN, READY); tell_receiver(ready) }
    :: atomic { sender == S_STREAMING && posted == WINDOWS && in_flight == 0 ->
                SENDER(STREAMING, FLUSHED, HOLDING) }
    :: atomic { sender == S_READY && posted == WINDOWS && in_flight == 0 ->
                SENDER(READY, FLUSHED, DONE); tell_receiver(done) }
    :: atomic { sender == S_HOLDING && !produced -> produced = true;
                SENDER(HOLDING, TOKEN, DONE); tell_receiver(ready); tell_receiver(done) }

    /* Every way to stop. */
    :: atomic { up?[abort] -> up?abort; abort_owed = true; stop_sender() }
    :: atomic { rpc_up?[1] -> rpc_up?1; rpc_owed = true; stop_sender() }
    :: atomic { cut && !SENDER_OVER && sender != S_DRAINING -> stop_sender() }
    :: atomic { !lease && !SENDER_OVER && sender != S_DRAINING -> stop_sender() }
    :: atomic { (MAY_POST || sender == S_ACCEPTED) && !faulted -> faulted = true; abort_owed = true; stop_sender() }

    /* What was under way when the room stopped. */
    :: atomic { sender == S_DRAINING && up?[grant] -> up?grant; SENDER(DRAINING, GRANT, DRAINING) }
    :: atomic { sender == S_ENDED && up?[grant] -> up?grant; SENDER(ENDED, GRANT, ENDED) }
    :: atomic { sender == S_DRAINING && !produced -> produced = true;
                if
                :: SENDER(DRAINING, TOKEN, DRAINING)
                :: SENDER(DRAINING, FLUSHED, DRAINING)
                :: SENDER(DRAINING, WANT_MEDIA, DRAINING)
                :: SENDER(DRAINING, MEDIA, DRAINING)
                :: SENDER(DRAINING, ACCEPT, DRAINING)
                :: SENDER(DRAINING, REFUSE, DRAINING)
                fi }
    :: atomic { sender == S_DRAINING && QUIET -> SENDER(DRAINING, DRAINED, ENDED) }

    /* The reply to an abort is the drain acknowledgement, so it comes last. */
    :: atomic { SENDER_OVER && abort_owed -> abort_owed = false; tell_receiver(drained) }
    :: atomic { SENDER_OVER && rpc_owed -> rpc_owed = false;
                if :: !partitioned -> rpc_down!1 :: partitioned fi }

    :: atomic { sender_dead = true; cut = true; break }
    od
}

inline lose()
{
    if
    :: receiver == R_RESERVED -> RECEIVER(RESERVED, LOSE, ENDED)
    :: receiver == R_ACCEPTED -> RECEIVER(ACCEPTED, LOSE, ENDED)
    :: receiver == R_GRANTED -> RECEIVER(GRANTED, LOSE, QUARANTINED)
    :: receiver == R_READY -> RECEIVER(READY, LOSE, QUARANTINED)
    :: receiver == R_VERIFYING -> RECEIVER(VERIFYING, LOSE, QUARANTINED)
    :: receiver == R_QUARANTINED -> RECEIVER(QUARANTINED, LOSE, QUARANTINED)
    fi
}

#define ASKED (receiver == R_RESERVED || receiver == R_ACCEPTED || receiver == R_GRANTED \
               || receiver == R_READY || receiver == R_VERIFYING)

proctype Receiver()
{
    bool aborted;
    byte rpcs;
end:
    do
    :: atomic { receiver == R_NEW -> RECEIVER(NEW, RESERVE, RESERVED); tell_sender(reserve) }
    :: atomic { receiver == R_RESERVED && down?[queued] -> down?queued;
                RECEIVER(RESERVED, QUEUED, RESERVED) }
    /* The pieces come, or not: the call may break, or the peer may send none. */
    :: atomic { receiver == R_RESERVED && down?[wanted] -> down?wanted;
                RECEIVER(RESERVED, MEDIA_WANTED, RESERVED);
                if :: !partitioned -> pieces!1 :: skip fi }
    :: atomic { receiver == R_RESERVED && down?[accepted] -> down?accepted;
                RECEIVER(RESERVED, ACCEPTED, ACCEPTED) }
    :: atomic { receiver == R_RESERVED && down?[refused] -> down?refused;
                RECEIVER(RESERVED, REFUSED, ENDED) }
    :: atomic { receiver == R_ACCEPTED -> RECEIVER(ACCEPTED, GRANT, GRANTED); tell_sender(grant) }
    :: atomic { receiver == R_GRANTED && down?[ready] -> down?ready;
                RECEIVER(GRANTED, READY, READY); readies++; tokens++ }
    :: atomic { receiver == R_READY && down?[done] -> down?done;
                RECEIVER(READY, DONE, VERIFYING) }
#ifdef NO_VERIFY
    :: atomic { receiver == R_VERIFYING && STEP_ENDED ->
#else
    :: atomic { receiver == R_VERIFYING && landed == WINDOWS && !damaged && STEP_ENDED ->
#endif
                RECEIVER(VERIFYING, VERIFIED, COMMITTED); published = true; reused = true;
                tokens++ }
    :: atomic { receiver == R_VERIFYING && damaged -> lose() }

    /* A client cancels, a deadline passes, the engine has no room for the grant: the room is aborted. */
    :: atomic { ASKED && !aborted -> aborted = true; lose(); tell_sender(abort) }
    /* The sender gave up, or the stream broke. */
    :: atomic { ASKED && down?[drained] -> lose();
                if :: receiver == R_QUARANTINED -> skip :: else -> down?drained fi }
    :: atomic { ASKED && cut -> lose() }

    :: atomic { receiver == R_QUARANTINED && down?[ready] -> down?ready;
                RECEIVER(QUARANTINED, READY, QUARANTINED); readies++ }
    :: atomic { receiver == R_QUARANTINED && down?[done] -> down?done;
                RECEIVER(QUARANTINED, DONE, QUARANTINED) }
    :: atomic { receiver == R_QUARANTINED && !aborted -> aborted = true; lose();
                tell_sender(abort) }

    /* The three fences and nothing else, and after each of them the own step's end. */
    :: atomic { receiver == R_QUARANTINED && STEP_ENDED && down?[drained] -> down?drained;
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }
    :: atomic { receiver == R_QUARANTINED && cut && !partitioned && rpcs < 2 -> rpcs++; rpc_up!1 }
    :: atomic { receiver == R_QUARANTINED && STEP_ENDED && rpc_down?[1] -> rpc_down?1;
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }
    :: atomic { receiver == R_QUARANTINED && STEP_ENDED && FENCE_HOLDS ->
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }

    :: atomic { receiver_dead = true; cut = true; break }
    od
}

/* Writes land when they like; into a dead receiver they land nowhere. */
proctype Network()
{
end:
    do
    :: atomic { in_flight > 0 -> in_flight--;
                if
                :: receiver_dead
                :: !receiver_dead -> assert(!reused); landed++; if :: skip :: damaged = true fi
                fi }
    od
}

#ifdef EARLY
/* Begun once the first token is here, or not; its token is dropped or joins the answer at the commit. */
proctype EarlyStep()
{
end:
    atomic { receiver == R_READY -> if :: stepping = true :: skip fi };
    if
    :: stepping -> atomic { assert(!reused); stepping = false }
    :: else -> skip
    fi
}
#endif

proctype World()
{
    if :: gateway_called = true :: skip fi;
    if :: cut = true :: atomic { cut = true; partitioned = true } :: skip fi;
    /* Without an answer to its beats the writer's lease runs out. */
end:
    atomic { (partitioned || receiver_dead) -> lease = false }
}

init
{
    atomic {
        run Sender(); run Receiver(); run Network(); run World();
#ifdef EARLY
        run EarlyStep()
#endif
    };
    timeout;
    assert(SENDER_OVER && RECEIVER_OVER);
    assert(readies <= 1);
    assert(in_flight == 0)
}

ltl nothing_before_done { [] ((tokens > 1 || published) -> (landed == WINDOWS && !damaged)) }
ltl ready_at_most_once { [] (readies <= 1) }
