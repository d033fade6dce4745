/* One request over several hand-overs, for spin: a first prefill node, then a second, then prefill here. The
 * request's moves are the rows MOVE(from, to); engine/request.py carries the same and a test compares them.
 * One hand-over alone is handover.pml's: here a node grants, writes, tells and stops when it likes, and its
 * fence holds once it has stopped and nothing of it is in flight.
 *
 * Modelled: two rooms, one after the other, whose messages may come at any later time; two sets of ids, each
 * with an owner; writes that land late; a room that is lost in any phase; a client that leaves. Not modelled:
 * more nodes than attempts, rooms of other requests, what a fence is made of.
 *
 * Checked: no write lands in ids of another owner; one first token at most, whatever was asked again; only a
 * room whose windows all landed is decoded from; the request ends, and every id is free or its own again.
 *
 * Mutations, each of which must be found: NO_QUARANTINE, TOKEN_TWICE, STALE_DONE.
 */
#define WINDOWS 2
#define ATTEMPTS 2
#define NOBODY 9
#define HERE 2              /* the owner that prefills locally; rooms are 0 and 1 */

mtype:request_state = { Q_Waiting, Q_AwaitingPrefill, Q_Receiving, Q_Prefilling, Q_Decoding, Q_Aborted };
mtype:node_state = { N_IDLE, N_QUEUED, N_WRITING, N_TOLD, N_DONE, N_STOPPED };
mtype = { wanted, ready, done, lost };

mtype:request_state request = Q_Waiting;
mtype:node_state node[ATTEMPTS];
chan said = [4] of { byte, mtype };   /* from the rooms to the engine */

byte owner[2];              /* of each set of ids; NOBODY: free */
bool quarantined[2];
byte held = NOBODY;         /* the set that the request's lease has */
byte granted[ATTEMPTS];     /* the set that a room was granted */
byte in_flight[ATTEMPTS], posted[ATTEMPTS], landed[ATTEMPTS];
byte room = NOBODY;         /* the live one */
byte tried;
byte firsts;                /* first tokens that reached the client */
bool output;

#define MOVE(from, to) assert(request == Q_##from); request = Q_##to
#define OVER (request == Q_Decoding || request == Q_Aborted)
#define STOPPED(r) (node[r] == N_DONE || node[r] == N_STOPPED)

#ifdef TOKEN_TWICE
#define MAY_ASK_AGAIN true
#else
#define MAY_ASK_AGAIN (!output)
#endif

inline take(who)
{
    if
    :: owner[0] == NOBODY -> held = 0
    :: owner[0] != NOBODY && owner[1] == NOBODY -> held = 1
    fi;
    owner[held] = who
}

inline drop_ids()
{
    if
    :: held != NOBODY ->
#ifdef NO_QUARANTINE
        owner[held] = NOBODY;
#else
        quarantined[held] = true;
#endif
        held = NOBODY
    :: held == NOBODY
    fi
}

/* A prefill node with its link: it never hears of the engine's state but by being asked. */
proctype Node(byte me)
{
end:
    do
    :: atomic { node[me] == N_QUEUED && (len(said) < 4) && granted[me] == NOBODY && room == me ->
                said!me, wanted; granted[me] = HERE }
    :: atomic { node[me] == N_QUEUED && granted[me] < HERE -> node[me] = N_WRITING }
    :: atomic { (node[me] == N_WRITING || node[me] == N_TOLD) && posted[me] < WINDOWS ->
                posted[me]++; in_flight[me]++ }
    :: atomic { in_flight[me] > 0 -> in_flight[me]--; landed[me]++;
                assert(owner[granted[me]] == me) }
    :: atomic { node[me] == N_WRITING && (len(said) < 4) -> node[me] = N_TOLD; said!me, ready }
    :: atomic { node[me] == N_TOLD && landed[me] == WINDOWS && (len(said) < 4) ->
                node[me] = N_DONE; said!me, done }
    /* It dies, breaks or is cut off: the engine is told, and it posts no more. */
    :: atomic { (node[me] == N_QUEUED || node[me] == N_WRITING || node[me] == N_TOLD) &&
                (len(said) < 4) -> node[me] = N_STOPPED; said!me, lost }
    od
}

proctype Engine()
{
    byte from;
end:
    do
    :: atomic { request == Q_Waiting && tried < ATTEMPTS && MAY_ASK_AGAIN ->
                MOVE(Waiting, AwaitingPrefill); room = tried; node[tried] = N_QUEUED; tried++ }
    /* All were tried, or the first token is out: here, as soon as there is room. */
    :: atomic { request == Q_Waiting && (tried == ATTEMPTS || output) &&
                (owner[0] == NOBODY || owner[1] == NOBODY) ->
                take(HERE); MOVE(Waiting, Prefilling) }
    :: atomic { request == Q_Prefilling -> MOVE(Prefilling, Decoding);
                if :: !output -> output = true; firsts++ :: output fi }

    :: atomic { said?[from, wanted] -> said?from, wanted;
                if
                :: from == room && request == Q_AwaitingPrefill &&
                   (owner[0] == NOBODY || owner[1] == NOBODY) ->
                    take(from); granted[from] = held; MOVE(AwaitingPrefill, Receiving)
                :: else
                fi }
    :: atomic { said?[from, ready] -> said?from, ready;
                if
                :: from == room && request == Q_Receiving -> output = true; firsts++
                :: else
                fi }
    :: atomic { said?[from, done] -> said?from, done;
                if
#ifdef STALE_DONE
                :: request == Q_Receiving ->
#else
                :: from == room && request == Q_Receiving ->
#endif
                    assert(landed[room] == WINDOWS);
                    owner[held] = HERE; MOVE(Receiving, Decoding)
                :: else
                fi }
    :: atomic { said?[from, lost] -> said?from, lost;
                if
                :: from == room && request == Q_AwaitingPrefill ->
                    room = NOBODY; MOVE(AwaitingPrefill, Waiting)
                :: from == room && request == Q_Receiving ->
                    room = NOBODY; drop_ids(); MOVE(Receiving, Waiting)
                :: else
                fi }
    /* The engine's own end of a room: a deadline, a mismatch. The node hears of it later. */
    :: atomic { request == Q_Receiving && node[room] != N_DONE ->
                room = NOBODY; drop_ids(); MOVE(Receiving, Waiting) }

    /* A client leaves. */
    :: atomic { request == Q_Waiting -> MOVE(Waiting, Aborted) }
    :: atomic { request == Q_AwaitingPrefill -> room = NOBODY; MOVE(AwaitingPrefill, Aborted) }
    :: atomic { request == Q_Receiving -> room = NOBODY; drop_ids(); MOVE(Receiving, Aborted) }
    :: atomic { request == Q_Prefilling -> owner[held] = NOBODY; held = NOBODY;
                MOVE(Prefilling, Aborted) }
    :: atomic { request == Q_Decoding && held != NOBODY -> owner[held] = NOBODY; held = NOBODY;
                MOVE(Decoding, Aborted) }

    /* The fence of each room by itself. */
    :: atomic { quarantined[0] && STOPPED(owner[0]) && in_flight[owner[0]] == 0 ->
                quarantined[0] = false; owner[0] = NOBODY }
    :: atomic { quarantined[1] && STOPPED(owner[1]) && in_flight[owner[1]] == 0 ->
                quarantined[1] = false; owner[1] = NOBODY }
    od
}

/* A node that is not asked any more is told so at last. */
proctype Abort()
{
end:
    do
    :: atomic { node[0] != N_IDLE && !STOPPED(0) && room != 0 -> node[0] = N_STOPPED }
    :: atomic { node[1] != N_IDLE && !STOPPED(1) && room != 1 -> node[1] = N_STOPPED }
    od
}

init
{
    atomic {
        node[0] = N_IDLE; node[1] = N_IDLE;
        owner[0] = NOBODY; owner[1] = NOBODY;
        granted[0] = NOBODY; granted[1] = NOBODY;
        run Node(0); run Node(1); run Engine(); run Abort()
    };
    timeout;
    assert(OVER);
    assert(firsts <= 1);
    assert(!quarantined[0] && !quarantined[1]);
    assert(in_flight[0] == 0 && in_flight[1] == 0);
    assert(owner[0] == NOBODY || held == 0);
    assert(owner[1] == NOBODY || held == 1)
}
