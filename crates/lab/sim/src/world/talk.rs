//! Routers that tell each other what they do, over a network that is slow, loses, or is cut.

use std::sync::Arc;

use warmroute_peers::{Config, Envelope};
use warmroute_types::{Micros, RouterId, To};

use super::World;
use crate::queue::Event;
use crate::session::Session;

/// A message on its way.
pub(super) struct Message {
    from: usize,
    to: usize,
    bytes: Arc<[u8]>,
}

/// A router's number is its place and one.
pub(super) fn name(gate: usize) -> RouterId {
    RouterId(gate as u64 + 1)
}

impl<S: Iterator<Item = Session>> World<'_, S> {
    /// Routers begin to speak, one after the other.
    pub(super) fn open_talk(&mut self) {
        if self.config.talk.is_none() {
            return;
        }
        let gates = self.gates.len();
        for gate in 0..gates {
            let offset = Config::default().batch_interval.0 * gate as u64 / gates as u64;
            self.queue.push(Micros(offset), Event::Speak { gate: gate as u16 });
        }
    }

    pub(super) fn speak(&mut self, gate: usize) {
        let letters = self.gates[gate].speak(self.now);
        letters.iter().for_each(|letter| self.tell(gate, letter));
        if !self.is_over() {
            self.queue.push(self.now + Config::default().batch_interval, Event::Speak { gate: gate as u16 });
        }
    }

    /// A router has just sent a request somewhere.
    pub(super) fn speak_up(&mut self, gate: usize) {
        let letters = self.gates[gate].speak_up(self.now);
        letters.iter().for_each(|letter| self.tell(gate, letter));
    }

    fn tell(&mut self, from: usize, letter: &Envelope) {
        let Some(talk) = &self.config.talk else { return };
        for to in 0..self.gates.len() {
            let is_meant = letter.to == To::Everyone || letter.to == To::One(name(to));
            if to == from || !is_meant {
                continue;
            }
            self.told_bytes += letter.bytes.len() as u64;
            if talk.loss > 0.0 && self.losses.share() < talk.loss {
                continue;
            }
            let message = Message { from, to, bytes: Arc::clone(&letter.bytes) };
            let number = self.messages.next_number;
            self.messages.next_number += 1;
            self.messages.under_way.insert(number, message);
            self.queue.push(self.now + talk.delay, Event::Told { message: number });
        }
    }

    pub(super) fn told(&mut self, message: u32) {
        let Some(Message { from, to, bytes }) = self.messages.under_way.remove(&message) else { return };
        let routers = self.gates.len();
        if self.config.talk.as_ref().is_some_and(|talk| talk.passes(from, to, routers, self.now)) {
            let answers = self.gates[to].hear_router(&bytes, self.now);
            answers.iter().for_each(|answer| self.tell(to, answer));
        }
    }
}

/// What is on its way.
#[derive(Default)]
pub(super) struct Messages {
    under_way: std::collections::HashMap<u32, Message>,
    next_number: u32,
}
