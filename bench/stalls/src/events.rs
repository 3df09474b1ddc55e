//! What happens while requests are routed.

use std::collections::VecDeque;

use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Change, SavedState};
use warmroute_types::{CacheEvent, Micros};

use crate::world::{self, BEGIN, MODEL, World};

/// A rare event, and the router to which it happens.
pub struct Event {
    pub name: &'static str,
    pub world: fn() -> World,
    pub happen: fn(&mut World),
}

pub const EVENTS: [Event; 15] = [
    Event { name: "nothing", world: World::reported, happen: |_| () },
    Event { name: "full-worker-leaves", world: full, happen: leave },
    Event {
        name: "full-worker-rejoins",
        world: full,
        happen: |world| {
            leave(world);
            world::join_reported(&world.router, 0);
        },
    },
    Event { name: "worker-fills", world: World::reported, happen: fill },
    Event {
        name: "restart",
        world: full,
        happen: |world| world.router.apply(Change::Emptied { worker: world::worker(&world.router, 0) }),
    },
    Event {
        name: "all-blocks-cleared",
        world: full,
        happen: |world| cached(world, vec![CacheEvent::Cleared]),
    },
    Event {
        name: "burst-100k-blocks",
        world: full,
        happen: |world| cached(world, world::stored(100_000, 1)),
    },
    Event {
        name: "1024-models-join-leave",
        world: World::with_models,
        happen: |world| {
            world::join(&world.router, 64, &world::many_models());
            world.router.apply(Change::Leave { address: world::address(64) });
        },
    },
    Event {
        name: "state-saved",
        world: || World::presumed().presume_full(BEGIN),
        happen: |world| _ = world.router.inspect().saved_state(BEGIN, 1).encode(),
    },
    Event {
        name: "state-restored",
        world: || {
            let full = World::presumed().presume_full(BEGIN);
            let world = World { peer: Some(full.router), ..World::presumed() };
            leave(&mut World { peer: None, router: world.router() });
            world
        },
        happen: restore,
    },
    Event {
        name: "expiry",
        world: || World::presumed().presume_full(BEGIN),
        happen: |world| world.router.apply(Change::Expired { at: BEGIN + Micros::from_secs(700) }),
    },
    Event {
        name: "budget-evictions",
        world: || World::presumed_within(24 << 20).presume_full(BEGIN),
        happen: |world| world::presume_full(&world.router, 1, BEGIN),
    },
    Event {
        name: "reload",
        world: World::reported,
        happen: |world| {
            let policy = || "expected_ttft".parse::<Standard>().expect("it is a policy");
            for requests in 0..1_000 {
                world.router.set_policies(policy(), vec![policy(), policy()]);
                world.router.apply(Change::InFlightMax { requests: 1_000 + requests });
            }
        },
    },
    Event {
        name: "peer-joins-and-asks",
        world: || World {
            peer: Some(World::presumed().share(2).router),
            ..World::presumed().presume_full(BEGIN).share(1)
        },
        happen: exchange,
    },
    Event {
        name: "peers-view-arrives",
        world: || World {
            peer: Some(World::presumed().presume_full(BEGIN).share(2).router),
            ..World::presumed().share(1)
        },
        happen: exchange,
    },
];

/// A router whose first worker reports a full cache.
fn full() -> World {
    let mut world = World::reported();
    fill(&mut world);
    world
}

fn fill(world: &mut World) {
    world::fill(&world.router, &world::worker(&world.router, 0));
}

fn cached(world: &World, events: Vec<CacheEvent>) {
    world.router.apply(Change::Cached { worker: world::worker(&world.router, 0), events });
}

fn leave(world: &mut World) {
    world.router.apply(Change::Leave { address: world::address(0) });
}

/// An earlier process left the state of a full fleet, and its worker joins.
fn restore(world: &mut World) {
    let saved = world.peer.as_ref().expect("there is a full router").inspect().saved_state(BEGIN, 1);
    let state = Box::new(SavedState::decode(&saved.encode()).expect("it was just written"));
    world.router.apply(Change::Restored { state, age: Micros::ZERO, at: BEGIN });
    world::join(&world.router, 0, &Models::named(&[MODEL]));
}

/// Both routers exchange messages for eight seconds of their own time.
fn exchange(world: &mut World) {
    let (router, peer) = (&world.router, world.peer.as_ref().expect("there is a second router"));
    for tick in 0..400 {
        let now = BEGIN + Micros::from_millis(20 * tick);
        let mut to_router: VecDeque<_> = peer.peering().compose_messages(now).into();
        let mut to_peer: VecDeque<_> = router.peering().compose_messages(now).into();
        while let Some(envelope) = to_router.pop_front() {
            to_peer
                .extend(router.peering().receive(&envelope.bytes, now).expect("peers understand each other"));
        }
        while let Some(envelope) = to_peer.pop_front() {
            let answers = peer.peering().receive(&envelope.bytes, now).expect("peers understand each other");
            to_router.extend(answers);
        }
        while let Some(envelope) = to_router.pop_front() {
            to_peer
                .extend(router.peering().receive(&envelope.bytes, now).expect("peers understand each other"));
        }
        while let Some(envelope) = to_peer.pop_front() {
            _ = peer.peering().receive(&envelope.bytes, now).expect("peers understand each other");
        }
    }
}
