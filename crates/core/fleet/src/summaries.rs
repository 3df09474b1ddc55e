//! Copies of workers' loads, renewed where a worker has changed: see `load_summary.rs`.

use warmroute_types::{Micros, WorkerId};

use crate::{Fleet, LoadSummary};

impl Fleet {
    /// Renews the copy if the worker has changed since it was taken.
    #[inline]
    pub fn refresh(&self, summary: &mut LoadSummary) {
        let version = self.version(summary.worker);
        if summary.version != version {
            *summary = self.summary(summary.worker, version);
        }
    }

    /// A new copy.
    pub fn load_summary(&self, worker: WorkerId) -> LoadSummary {
        self.summary(worker, self.version(worker))
    }

    /// The same, as of this version.
    #[cold]
    fn summary(&self, worker: WorkerId, version: u64) -> LoadSummary {
        let load = self.load_view(worker);
        let summary = LoadSummary {
            version,
            state: load.state,
            takes_requests: load.takes_requests(),
            paused_until: load.paused_until,
            in_flight: load.in_flight,
            decode_tokens: load.decode_tokens,
            reported_at: load.report.map_or(Micros::ZERO, |report| report.at),
            ..LoadSummary::unread(worker)
        };
        self.queue(worker).summarize(summary)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use warmroute_types::{Address, Delivery, LoadReport, SourceReadiness};

    use super::*;
    use crate::{
        AnswerProgress, BookedWork, Booking, HealthConfig, Models, ObservedPrompt, PrefillFeatures,
        ProbeResult, QueueForecast,
    };

    const WORKERS: usize = 3;

    struct Scene {
        fleet: Arc<Fleet>,
        bookings: Vec<Booking>,
        now: Micros,
    }

    impl Scene {
        /// Anything that happens to a worker, drawn by `kind`.
        fn happen(&mut self, kind: u8, n: usize, amount: u32) {
            let (fleet, now) = (&self.fleet, self.now);
            let members = fleet.members();
            let address = |n: usize| Address::new(format!("http://engine-{}", n % WORKERS));
            let Some(worker) = members.get(n % members.len().max(1)).map(|view| Arc::clone(&view.worker))
            else {
                _ = fleet.join(address(n), Models::Any);
                return;
            };
            match kind {
                0 => _ = fleet.join(address(n), Models::Unknown),
                1 => _ = fleet.leave(&worker.address),
                2 => _ = fleet.probed(&worker, ProbeResult::Answered, now),
                3 => _ = fleet.failed(&worker, now),
                4 => _ = fleet.record_break(&worker, amount.into(), now),
                5 => fleet.pause(&worker, now + Micros::from_millis(amount.into())),
                6 => _ = fleet.serves(&worker, Models::named(&[["a", "b"][n % 2]])),
                7 => fleet.set_kv_tokens(worker.id, amount.into()),
                8 => fleet.restore_worker(&worker, [f64::from(amount) / 1e3, 20.0], None),
                9 => _ = fleet.set_readiness(&worker, SourceReadiness::NotReady),
                10 => {
                    let places = Some(amount % 4);
                    let report = LoadReport { waiting: amount % 3, places, at: now, ..LoadReport::default() };
                    _ = fleet.report(&worker, report);
                }
                11 => {
                    let late = Micros::from_secs(100);
                    _ = fleet.compare_first_token(&worker, Micros(1), late, now);
                }
                _ => self.request(kind, n, amount, worker.id),
            }
        }

        /// A request is booked, or something happens to one.
        fn request(&mut self, kind: u8, n: usize, amount: u32, worker: WorkerId) {
            let delivery = if amount.is_multiple_of(2) { Delivery::Streamed } else { Delivery::Whole };
            let features = PrefillFeatures { miss_tokens: amount, ..PrefillFeatures::default() };
            let work = BookedWork { prefill_tokens: amount, context_tokens: amount, features, delivery };
            let place = n % self.bookings.len().max(1);
            let Some(booking) = self.bookings.get_mut(place).filter(|_| kind > 14) else {
                let make = if kind == 12 { Booking::of_peer } else { Booking::make };
                return self.bookings.push(make(&self.fleet, worker, work, self.now));
            };
            match kind {
                15 => booking.first_token(self.now),
                16 => booking.first_token_at_peer(self.now),
                17 => booking.reported(ObservedPrompt { prompt_tokens: amount, cached_tokens: 0 }, self.now),
                18 => {
                    let worker = self.fleet.workers().into_iter().map(|view| view.worker);
                    let mut worker = worker.filter(|worker| worker.id == booking.worker());
                    worker
                        .next()
                        .iter()
                        .for_each(|worker| booking.answered(worker, AnswerProgress::Complete));
                }
                _ => _ = self.bookings.swap_remove(place),
            }
        }
    }

    proptest! {
        /// Whatever happens to workers: a copy that is refreshed is equal to a new one, and a free worker's forecast is as
        /// short as it looks.
        #[test]
        fn a_refreshed_copy_is_as_good_as_a_new_one(
            steps in prop::collection::vec((0..21_u8, 0..12_usize, 0..3_000_u32, 0..2_000_u64), 1..200),
        ) {
            let fleet = Arc::new(Fleet::new(HealthConfig::default()));
            let mut kept = (0..WORKERS as u16).map(|n| LoadSummary::unread(WorkerId(n))).collect::<Vec<_>>();
            let mut scene = Scene { fleet, bookings: Vec::new(), now: Micros::from_secs(10) };
            for (kind, n, amount, passed_ms) in steps {
                scene.now = scene.now + Micros::from_millis(passed_ms);
                scene.happen(kind, n, amount);
                for kept in &mut kept {
                    scene.fleet.refresh(kept);
                    let new = scene.fleet.load_summary(kept.worker);
                    prop_assert_eq!(*kept, new);
                    let forecast = QueueForecast {
                        idle: scene.now.since(new.booked_at),
                        kv_tokens: Some(new.kv_tokens).filter(|&tokens| tokens > 0),
                        relative_latency: new.relative_latency,
                        kind: new.kind,
                        ..QueueForecast::default()
                    };
                    if new.is_free {
                        prop_assert_eq!(scene.fleet.forecast(new.worker, scene.now), forecast);
                    }
                }
            }
        }
    }
}
