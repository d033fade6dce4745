/* The return path of one room, for spin: a hand-over with roles swapped. The moves of both sides are the rows
 * SENDER(from, event, to) and RECEIVER(from, event, to); transfer/lifecycle/states.py carries the same rows and a
 * test compares them. The sender is the decode node, the receiver the prefill node; the decode node opened
 * the connection, so there is no call from the receiver to it: what outlives the room's stream is told by
 * renewals of the heartbeat.
 *
 * Modelled: the room's stream as two FIFO channels that may be cut at any point, by a fault or since the room
 * is over; renewals, which stop with the connection; one-sided writes that land at any later time, also after
 * their writer died, until they are severed; crash of either side at any point; a partition or a receiver that
 * gives the connection up, after which only the lease ends the writer's right to post; transport faults; what
 * was offered being gone; bytes that land damaged. Not modelled: several pulls, durations, the hand-over that
 * follows.
 *
 * Checked: no write lands in ids that have a new owner; nothing is published before every window landed; what
 * is being sent stays pinned; both sides end in every run (no deadlock, no cycle).
 *
 * Mutations, each of which must be found: NO_FENCE, NO_DRAIN, NO_LEASE, NO_SEVER, NO_PIN, NO_VERIFY.
 */
#define WINDOWS 2

mtype:sender_state = { S_IDLE, S_PINNING, S_STREAMING, S_DRAINING, S_DONE, S_REFUSED, S_ENDED };
mtype:receiver_state = { R_NEW, R_GRANTED, R_VERIFYING, R_COMMITTED, R_QUARANTINED, R_ENDED };
mtype = { ask, stop, done, failed };

chan down = [2] of { mtype };     /* the room's stream, to the sender */
chan up = [2] of { mtype };       /* and to the receiver */
chan renewal = [1] of { bit };    /* "drained", on the heartbeat */

mtype:sender_state sender = S_IDLE;
mtype:receiver_state receiver = R_NEW;

bool cut;                /* the room's stream is over: both sides will see it */
bool partitioned;        /* nothing but time passes between the two */
bool lease = true;       /* the writer may post */
bool sender_dead, receiver_dead;
byte posted, in_flight, landed;
bool damaged;            /* a window landed with wrong bytes */
bool reused;             /* the granted ids have a new owner */
bool pinned;             /* what is sent cannot change */
bool published;

#define SENDER(from, event, to) assert(sender == S_##from); sender = S_##to
#define RECEIVER(from, event, to) assert(receiver == R_##from); receiver = R_##to

#define SENDER_OVER (sender_dead || sender == S_DONE || sender == S_REFUSED || sender == S_ENDED)
#define RECEIVER_OVER (receiver_dead || receiver == R_COMMITTED || receiver == R_ENDED)

#ifdef NO_DRAIN
#define QUIET true
#else
#define QUIET (in_flight == 0)
#endif

#ifdef NO_LEASE
#define MAY_STILL_POST true
#else
#define MAY_STILL_POST lease
#endif

#ifdef NO_FENCE
#define FENCE_HOLDS true
#else
#ifdef NO_SEVER
/* A lease that ran out ends posting, not what a socket still holds. */
#define FENCE_HOLDS ((sender_dead && in_flight == 0) || !lease)
#else
#define FENCE_HOLDS ((sender_dead || !lease) && in_flight == 0)
#endif
#endif

inline tell_receiver(message) { if :: !cut -> up!message :: cut fi }
inline tell_sender(message) { if :: !cut -> down!message :: cut fi }

inline stop_sender()
{
    if
    :: sender == S_PINNING -> SENDER(PINNING, STOP, DRAINING)
    :: sender == S_STREAMING -> SENDER(STREAMING, STOP, DRAINING)
    :: sender == S_DRAINING -> SENDER(DRAINING, STOP, DRAINING)
    :: sender == S_DONE -> SENDER(DONE, STOP, DONE)
    :: sender == S_REFUSED -> SENDER(REFUSED, STOP, REFUSED)
    :: sender == S_ENDED -> SENDER(ENDED, STOP, ENDED)
    :: else
    fi
}

proctype Sender()
{
    bool answered, flushed, faulted, acknowledged;
end:
    do
    :: atomic { sender == S_IDLE && down?[ask] -> down?ask; SENDER(IDLE, ASK, PINNING) }

    /* The engine. */
    :: atomic { sender == S_PINNING && !answered -> answered = true; pinned = true;
                SENDER(PINNING, PINNED, STREAMING) }
    :: atomic { sender == S_PINNING && !answered -> answered = true;
                SENDER(PINNING, REFUSE, REFUSED); tell_receiver(failed) }

    :: atomic { sender == S_STREAMING && MAY_STILL_POST && posted < WINDOWS ->
                posted++; in_flight++
#ifdef NO_PIN
                ; pinned = false
#endif
              }
    :: atomic { sender == S_STREAMING && posted == WINDOWS && in_flight == 0 -> flushed = true;
                SENDER(STREAMING, FLUSHED, DONE); tell_receiver(done) }

    /* Every way to stop. */
    :: atomic { sender != S_IDLE && down?[stop] -> down?stop; stop_sender() }
    :: atomic { (cut || !lease) && (sender == S_PINNING || sender == S_STREAMING) -> stop_sender() }
    :: atomic { sender == S_STREAMING && !faulted -> faulted = true; stop_sender() }

    /* What was under way when the pull stopped. */
    :: atomic { sender == S_DRAINING && !answered -> answered = true;
                if
                :: SENDER(DRAINING, PINNED, DRAINING)
                :: SENDER(DRAINING, REFUSE, DRAINING)
                fi }
    :: atomic { sender == S_ENDED && !answered -> answered = true;
                if
                :: SENDER(ENDED, PINNED, ENDED)
                :: SENDER(ENDED, REFUSE, ENDED)
                fi }
    :: atomic { sender == S_DRAINING && posted == WINDOWS && in_flight == 0 && !flushed ->
                flushed = true; SENDER(DRAINING, FLUSHED, DRAINING) }
    :: atomic { sender == S_DRAINING && QUIET -> SENDER(DRAINING, DRAINED, ENDED);
                tell_receiver(failed) }

    /* Let go, and say so where it outlives the stream. */
    :: atomic { SENDER_OVER && pinned -> pinned = false }
    :: atomic { SENDER_OVER && sender != S_IDLE && !acknowledged -> acknowledged = true;
                if :: !partitioned -> renewal!1 :: partitioned fi }

    :: atomic { sender_dead = true; cut = true; break }
    od
}

proctype Receiver()
{
    bool drained, left;
end:
    do
    :: atomic { receiver == R_NEW -> RECEIVER(NEW, GRANT, GRANTED); tell_sender(ask) }
    :: atomic { receiver == R_GRANTED && up?[done] -> up?done; drained = true;
                RECEIVER(GRANTED, DONE, VERIFYING) }
    :: atomic { receiver == R_GRANTED && up?[failed] -> up?failed; drained = true;
                RECEIVER(GRANTED, LOSE, QUARANTINED) }
#ifdef NO_VERIFY
    :: atomic { receiver == R_VERIFYING ->
#else
    :: atomic { receiver == R_VERIFYING && landed == WINDOWS && !damaged ->
#endif
                RECEIVER(VERIFYING, VERIFIED, COMMITTED); published = true; reused = true }
    :: atomic { receiver == R_VERIFYING && damaged -> RECEIVER(VERIFYING, LOSE, QUARANTINED) }

    /* A deadline; the stream's end; the room's. */
    :: atomic { receiver == R_GRANTED -> RECEIVER(GRANTED, LOSE, QUARANTINED); tell_sender(stop) }
    :: atomic { receiver == R_GRANTED && cut -> RECEIVER(GRANTED, LOSE, QUARANTINED) }
    :: atomic { receiver == R_QUARANTINED && cut && !left -> left = true;
                RECEIVER(QUARANTINED, LOSE, QUARANTINED) }

    :: atomic { receiver == R_QUARANTINED && up?[done] -> up?done; drained = true;
                RECEIVER(QUARANTINED, DONE, QUARANTINED) }
    :: atomic { receiver == R_QUARANTINED && up?[failed] -> up?failed; drained = true }

    /* The three fences and nothing else. */
    :: atomic { receiver == R_QUARANTINED && drained ->
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }
    :: atomic { receiver == R_QUARANTINED && renewal?[1] -> renewal?1;
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }
    :: atomic { receiver == R_QUARANTINED && FENCE_HOLDS ->
                RECEIVER(QUARANTINED, FENCED, ENDED); reused = true }
    /* Patience is over: the connection is given up, so that the lease runs out. */
    :: atomic { receiver == R_QUARANTINED && !partitioned -> cut = true; partitioned = true }

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
                :: !receiver_dead -> assert(!reused); assert(pinned || sender_dead);
                                     landed++; if :: skip :: damaged = true fi
                fi }
    od
}

proctype World()
{
    if :: cut = true :: atomic { cut = true; partitioned = true } :: skip fi;
    /* Without an answer to its renewals the writer's lease runs out. */
end:
    atomic { (partitioned || receiver_dead) -> lease = false }
}

init
{
    atomic { run Sender(); run Receiver(); run Network(); run World() };
    timeout;
    assert(sender == S_IDLE || SENDER_OVER);
    assert(RECEIVER_OVER);
    assert(in_flight == 0)
}

ltl nothing_before_done { [] (published -> (landed == WINDOWS && !damaged)) }
