/* Hand-overs between a node of SENDERS ranks and one of RECEIVERS, for spin. One hand-over's messages and fences
 * are handover.pml's: here is what several ranks add. One process of each node, its leader, speaks, posts and
 * grants for all of them; the others run plans.
 *
 * Modelled: ranks that run a forward layer by layer, at most one layer apart; their reports, which come late;
 * windows whose pieces lead from each sender's rank to each receiver's and land in any order, also after their
 * writer died; a plan without a collective on the receiver's ranks, each at its own pace; a second room in the
 * same ids; the death of any rank at any point, of which the node's end comes later.
 * Not modelled: messages of a room, damage (a window's digest is the sum over all ranks), leases.
 *
 * Checked: a window is posted only when each rank has written its part; no piece lands in a rank that has still
 * to run a plan on those ids, or in ids of another owner; a room is committed only when each piece of it landed;
 * every run ends.
 *
 * Mutations, each of which must be found where there is more than one such rank: OWN_STEPS (the leader's own
 * counter says when a window may leave), OWN_END (ids change owners when the leader has run the plan),
 * FENCE_BY_RANK (the death of any rank counts as the writer's).
 */
#ifndef SENDERS
#define SENDERS 2
#endif
#ifndef RECEIVERS
#define RECEIVERS 2
#endif
#define WINDOWS 2           /* a layer each */
#define ROOMS 2
#define PIECES (SENDERS * RECEIVERS)
#define LEADER 0

byte room;                  /* the one at work; ROOMS: all are over */
bool granted;
byte ran[SENDERS];          /* layers that each rank of the prefill node has run, of all rooms */
byte reported[SENDERS];     /* how many of them the leader counts */
bool dead[SENDERS];
byte posted;                /* windows of the room */
byte in_flight, landed;     /* pieces of the room */
byte planned;               /* plans of the decode node so far, one behind each room's commit */
byte executed[RECEIVERS];
bool reused;                /* the ids belong to neither room */
bool receiver_dead;

#if SENDERS == 1
#define EACH_SENDER(counts, least) (counts[0] >= least)
#define SOME_DEAD dead[0]
#elif SENDERS == 2
#define EACH_SENDER(counts, least) (counts[0] >= least && counts[1] >= least)
#define SOME_DEAD (dead[0] || dead[1])
#else
#define EACH_SENDER(counts, least) (counts[0] >= least && counts[1] >= least && counts[2] >= least)
#define SOME_DEAD (dead[0] || dead[1] || dead[2])
#endif

#if RECEIVERS == 1
#define EACH_EXECUTED (executed[0] == planned)
#elif RECEIVERS == 2
#define EACH_EXECUTED (executed[0] == planned && executed[1] == planned)
#else
#define EACH_EXECUTED (executed[0] == planned && executed[1] == planned && executed[2] == planned)
#endif

#define NEXT (room * WINDOWS + posted + 1)      /* layers behind which the next window stands */
#ifdef OWN_STEPS
#define MAY_LEAVE (ran[LEADER] >= NEXT)
#else
#define MAY_LEAVE EACH_SENDER(reported, NEXT)
#endif

#ifdef OWN_END
#define PLAN_ENDED (executed[LEADER] == planned)
#else
#define PLAN_ENDED EACH_EXECUTED
#endif

#ifdef FENCE_BY_RANK
#define WRITER_DEAD SOME_DEAD
#else
#define WRITER_DEAD dead[LEADER]
#endif

#define ALL_LANDED (landed == WINDOWS * PIECES)

proctype PrefillRank(byte me)
{
end:
    do
    /* A forward of a room's layers, behind all ranks' last layer. */
    :: atomic { !dead[me] && granted && ran[me] < (room + 1) * WINDOWS && EACH_SENDER(ran, ran[me]) ->
                ran[me]++ }
    :: atomic { !dead[LEADER] && reported[me] < ran[me] -> reported[me]++ }
    :: atomic { !dead[me] -> dead[me] = true; break }
    :: atomic { dead[LEADER] -> dead[me] = true; break }
    od
}

/* Of the prefill node: the one process that writes. */
proctype Leader()
{
end:
    do
    :: atomic { !dead[LEADER] && granted && posted < WINDOWS && MAY_LEAVE ->
                assert(EACH_SENDER(ran, NEXT)); posted++; in_flight = in_flight + PIECES }
    /* It sees that a rank died, and ends the node. */
    :: atomic { SOME_DEAD -> dead[LEADER] = true; break }
    od
}

proctype Network()
{
end:
    do
    :: atomic { in_flight > 0 -> in_flight--;
                if
                :: receiver_dead
                :: !receiver_dead -> assert(!reused && EACH_EXECUTED); landed++
                fi }
    od
}

proctype DecodeRank(byte me)
{
end:
    do
    :: atomic { !receiver_dead && executed[me] < planned -> executed[me]++ }
    :: atomic { !receiver_dead -> receiver_dead = true; break }
    :: receiver_dead -> break
    od
}

/* Of the decode node: grants ids, commits rooms, plans. */
proctype Receiver()
{
end:
    do
    :: receiver_dead || reused || room == ROOMS -> break
    :: atomic { !receiver_dead && !granted && room < ROOMS -> granted = true }
    /* Committed: what was handed over is used, by a plan that has no collective. */
    :: atomic { !receiver_dead && granted && ALL_LANDED && planned == room -> planned++ }
    /* The ids are free for the next room. */
    :: atomic { !receiver_dead && planned == room + 1 && PLAN_ENDED ->
                granted = false; posted = 0; landed = 0; room++ }
    /* The writer is proven dead, and what was under way has settled. */
    :: atomic { !receiver_dead && !reused && granted && planned == room && WRITER_DEAD && in_flight == 0 ->
                reused = true }
    od
}

init
{
    byte me;
    atomic {
        me = 0;
        do :: me < SENDERS -> run PrefillRank(me); me++ :: else -> break od;
        me = 0;
        do :: me < RECEIVERS -> run DecodeRank(me); me++ :: else -> break od;
        run Leader(); run Network(); run Receiver()
    };
    timeout;
    assert(receiver_dead || reused || room == ROOMS);
    assert(in_flight == 0)
}

ltl nothing_before_all_landed { [] (planned > room -> ALL_LANDED) }
