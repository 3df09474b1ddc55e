//! The workers that serve one model, and the critical section in which one is chosen and booked.

use std::sync::Arc;

use parking_lot::Mutex;
use warmroute_fleet::{Booking, Fleet, Work, Worker};
use warmroute_policy::{Ask, Candidate, Choice, Policy};
use warmroute_types::{Micros, WorkerId, WorkerState};

/// One model's workers.
#[derive(Default)]
pub(crate) struct Pool {
    section: Mutex<Section>,
}

/// What the critical section works on. The candidates' memory is reserved when members change, not per decision.
#[derive(Default)]
struct Section {
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    /// For each candidate, which member it is.
    seats: Vec<usize>,
    turn: u64,
}

/// A worker, with what every decision reads of it copied beside the pointer: following thousands of pointers would be
/// most of a decision's cost.
struct Member {
    id: WorkerId,
    identity: u64,
    worker: Arc<Worker>,
}

/// What a decision needs besides the policy.
pub(crate) struct Terms<'a> {
    pub ask: Ask,
    pub work: Work,
    pub avoid: &'a [WorkerId],
    pub now: Micros,
    pub report_age_max: Micros,
}

/// A booked choice.
pub(crate) struct Placed {
    pub worker: Arc<Worker>,
    pub reason: &'static str,
    pub booking: Booking,
}

impl Pool {
    /// Replaces the members; the count of turns goes on. When this returns, no decision can choose a former member.
    pub(crate) fn set_members(&self, members: Vec<Arc<Worker>>) {
        let mut section = self.section.lock();
        section.candidates = Vec::with_capacity(members.len());
        section.seats = Vec::with_capacity(members.len());
        section.members = members.into_iter().map(Member::from).collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.section.lock().members.is_empty()
    }

    /// Chooses and books in one step. `None`: no member is ready, or all ready ones are to be avoided.
    pub(crate) fn place<P: Policy>(
        &self,
        fleet: &Arc<Fleet>,
        policy: &P,
        terms: Terms<'_>,
    ) -> Option<Placed> {
        let mut section = self.section.lock();
        section.line_up(fleet, &terms);
        if section.candidates.is_empty() {
            return None;
        }
        let ask = Ask { turn: section.turn, ..terms.ask };
        section.turn = section.turn.wrapping_add(1);
        let Choice { index, reason } = policy.choose(&ask, &section.candidates);
        let worker = Arc::clone(&section.members[section.seats[index]].worker);
        let booking = Booking::make(fleet, worker.id, terms.work);
        Some(Placed { worker, reason, booking })
    }
}

impl Section {
    /// Writes the ready members' numbers into the candidates.
    fn line_up(&mut self, fleet: &Fleet, terms: &Terms<'_>) {
        self.candidates.clear();
        self.seats.clear();
        for (seat, member) in self.members.iter().enumerate() {
            let desk = fleet.desk_view(member.id);
            if desk.state != WorkerState::Ready || terms.avoid.contains(&member.id) {
                continue;
            }
            self.seats.push(seat);
            self.candidates.push(Candidate {
                worker: member.id,
                identity: member.identity,
                in_flight: desk.in_flight,
                prefill_tokens: desk.prefill_tokens,
                decode_tokens: desk.decode_tokens,
                waiting: desk.waiting(terms.now, terms.report_age_max),
            });
        }
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        Member { id: worker.id, identity: worker.identity, worker }
    }
}
