//! How many requests an engine computes at once: its places (`max_num_seqs` of vLLM), as its reports show.
//!
//! A request beyond them waits until an answer ends, and no first token tells how long. Some engines report the number. vLLM does
//! not, but an engine in which requests wait while its memory has room is out of places, so its running requests are their
//! number. Requests also wait between two steps, and behind long prompts. So the number counts only if it is the most that the
//! engine has ever had running, if many wait, and if it is seen again: in reports of [`ENGINES_MIN`] engines of its kind within
//! [`ENGINES_WITHIN`] of each other, or in [`REPORTS_MIN`] of the engine in a row while half of its answers end and others take
//! their places. While an engine of the kind runs slowly more and more, nothing is learned: a number that grows looks like one that
//! stays, from each report to the next.

use warmroute_types::{LoadReport, Micros, WorkerId};

/// What an engine's reports have shown of its places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlaceReports {
    places: Option<u16>,
    /// The most requests that a report had running.
    most_running: u32,
    /// Requests that ran at the first of the latest reports in a row that showed a full engine with about as many; 0 without one.
    full_at: u32,
    /// The number of these reports.
    reports: u32,
    /// Answers of the engine before them.
    answers: u32,
    /// When a report last confirmed the number, or what could become one.
    confirmed_at: Micros,
}

/// Full engines of one kind that have shown the same number of running requests, one after another.
#[derive(Debug, Default)]
pub(crate) struct FullEngines {
    /// Requests that ran in the first of them.
    running: u32,
    seen: [Option<WorkerId>; ENGINES_MIN],
    /// When the last of them was seen.
    at: Micros,
    /// When an engine last ran a few more requests than while it looked full.
    grown_at: Option<Micros>,
}

/// Fewer places are not learned: so few requests often run twice in a row.
const PLACES_MIN: u32 = 16;

/// More are as good as unlimited, and this number stands for them. A report of more running requests is a mistake.
const PLACES_MAX: u32 = u16::MAX as u32;

/// Requests that wait in a full engine: at least so many, and one for so many that run. Fewer wait for the next step.
const WAITING_MIN: u32 = 4;
const RUNNING_PER_WAITING: u32 = 16;

/// With a larger share of its KV cache in use, an engine may wait for memory: prompts can be long.
const KV_USE_MAX: f32 = 0.5;

/// Numbers that differ by no more than this share, or by one, are of one full engine: answers have ended, and their places are not
/// taken yet.
const ENDED_SHARE: u32 = 64;

/// Reports of one full engine in a row that show its number, if one answer of so many running ones has ended since. While long
/// prompts are computed, fewer end, and what runs is the same by chance.
const REPORTS_MIN: u32 = 5;
const RUNNING_PER_ANSWER: u32 = 2;

/// Full engines that show the number of their kind. Two or three are often alike by chance.
const ENGINES_MIN: usize = 4;
const ENGINES_WITHIN: Micros = Micros::from_secs(60);

/// A number that no report has confirmed for so long is forgotten. If it was wrong, the worker would get too few requests to show it.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(600);

impl PlaceReports {
    /// The number of places, if it is known.
    pub(crate) fn places(&self) -> Option<u16> {
        self.places
    }

    /// Whether the engine could have so few places.
    pub(crate) fn allow(&self, places: u16) -> bool {
        self.most_running <= u32::from(places)
    }

    /// Learns from a report of a worker that has completed so many answers. Whether anything has changed.
    pub(crate) fn report(
        &mut self,
        (worker, answers): (WorkerId, u32),
        report: &LoadReport,
        kind: &mut FullEngines,
    ) -> bool {
        let before = (self.places, self.most_running);
        match report.places.filter(|&told| told > 0) {
            Some(told) => {
                let places = u16::try_from(told).unwrap_or(u16::MAX);
                *self = PlaceReports { places: Some(places), ..PlaceReports::default() }
            }
            None => self.learn((worker, answers), report, kind),
        }
        before != (self.places, self.most_running)
    }

    fn learn(&mut self, (worker, answers): (WorkerId, u32), report: &LoadReport, kind: &mut FullEngines) {
        let &LoadReport { waiting, running, kv_use, at, .. } = report;
        if at.since(self.confirmed_at) > FORGOTTEN_AFTER {
            *self = PlaceReports { confirmed_at: at, ..PlaceReports::default() };
        }
        let full_at = std::mem::take(&mut self.full_at);
        if running > PLACES_MAX {
            return;
        }
        self.most_running = self.most_running.max(running);
        // Run more than there are places: they are not that few.
        self.places = self.places.filter(|&places| self.allow(places));
        let is_most = is_near(running, self.most_running);
        let has_room = kv_use.is_some_and(|kv_use| kv_use < KV_USE_MAX);
        let waits = waiting >= WAITING_MIN.max(running / RUNNING_PER_WAITING) && has_room;
        if is_most && waits && running >= PLACES_MIN {
            let goes_on = is_near(running, full_at);
            if !goes_on {
                (self.reports, self.answers) = (0, answers);
            }
            self.full_at = if goes_on { full_at } else { running };
            self.reports += 1;
            // Requests waited when fewer ran, so they wait for something else than places.
            let has_grown = full_at > 0 && !goes_on;
            if has_grown {
                kind.grew(full_at, running, at);
            }
            let is_usual = !has_grown && kind.saw(worker, running, at);
            let ended = answers.wrapping_sub(self.answers);
            let is_refilled = self.reports >= REPORTS_MIN && ended >= running / RUNNING_PER_ANSWER;
            if (is_usual || is_refilled) && !kind.has_grown(at) {
                self.places = u16::try_from(self.most_running).ok();
            }
        } else if waits {
            kind.start_over();
        }
        if self.full_at > 0 || (is_most && self.places.is_none()) {
            self.confirmed_at = at;
        }
    }
}

impl FullEngines {
    /// An engine was full with so many running requests. Whether enough others were before it.
    fn saw(&mut self, worker: WorkerId, running: u32, at: Micros) -> bool {
        if !is_near(self.running, running) || at.since(self.at) > ENGINES_WITHIN {
            self.start_over();
            self.running = running;
        }
        self.at = at;
        if !self.seen.contains(&Some(worker))
            && let Some(free) = self.seen.iter_mut().find(|seen| seen.is_none())
        {
            *free = Some(worker);
        }
        self.seen.iter().all(Option::is_some)
    }

    /// An engine that looked full runs more requests now. A large step may end at its places, and many small ones do not.
    fn grew(&mut self, from: u32, to: u32, at: Micros) {
        self.start_over();
        if to.saturating_sub(from) <= 2 * tolerance(to) {
            self.grown_at = Some(at);
        }
    }

    /// Whether an engine has lately run a few more requests than while it looked full.
    fn has_grown(&self, now: Micros) -> bool {
        self.grown_at.is_some_and(|at| now.since(at) <= ENGINES_WITHIN)
    }

    /// Forgets the engines: one of them waits for something else.
    fn start_over(&mut self) {
        *self = FullEngines { grown_at: self.grown_at, ..FullEngines::default() };
    }
}

fn is_near(one: u32, other: u32) -> bool {
    one.abs_diff(other) <= tolerance(one.max(other))
}

/// By how much the numbers of a full engine differ.
fn tolerance(running: u32) -> u32 {
    (running / ENDED_SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports of one engine, a second apart.
    struct Scene {
        places: PlaceReports,
        kind: FullEngines,
        answers: u32,
        at: Micros,
    }

    fn scene() -> Scene {
        let (places, kind) = Default::default();
        Scene { places, kind, answers: u32::MAX - 40, at: Micros::from_secs(1_000) }
    }

    impl Scene {
        /// The places after a report of so many running and waiting requests.
        fn after(&mut self, running: u32, waiting: u32) -> Option<u16> {
            self.report(LoadReport { running, waiting, kv_use: Some(0.2), ..LoadReport::default() })
        }

        /// The places after reports that show it full.
        fn after_full(&mut self, running: u32) -> Option<u16> {
            [90; REPORTS_MIN as usize].map(|waiting| self.after(running, waiting))[REPORTS_MIN as usize - 1]
        }

        fn report(&mut self, report: LoadReport) -> Option<u16> {
            self.at = self.at + Micros::from_secs(1);
            self.answers = self.answers.wrapping_add(report.running / 4);
            let worker = (WorkerId(0), self.answers);
            self.places.report(worker, &LoadReport { at: self.at, ..report }, &mut self.kind);
            self.places.places()
        }
    }

    #[test]
    fn an_engine_that_stays_full_shows_its_places() {
        let mut scene = scene();
        assert_eq!(scene.after(200, 0), None);
        for running in [256, 254, 256, 255] {
            assert_eq!(scene.after(running, 40), None, "a long prompt may be before the others");
        }
        assert_eq!(scene.after(253, 50), Some(256), "three answers have just ended");
        assert_eq!(scene.after(90, 0), Some(256), "they are not used now");
    }

    #[test]
    fn requests_that_wait_for_the_next_step_show_no_places() {
        let mut scene = scene();
        for _ in 0..100 {
            assert_eq!(scene.after(30, 3), None, "few wait");
        }
        for running in [40, 80, 120, 160, 200] {
            assert_eq!(scene.after(running, 90), None, "more and more run");
        }
        for _ in 0..100 {
            assert_eq!(scene.after(60, 90), None, "it has had more running: it waits for something else");
        }
        for _ in 0..100 {
            let not_in_a_row = [90, 90, 90, 90, 0].map(|waiting| scene.after(200, waiting));
            assert_eq!(not_in_a_row, [None; 5]);
        }
    }

    #[test]
    fn an_engine_in_which_no_answers_end_shows_no_places() {
        let mut scene = scene();
        for _ in 0..100 {
            scene.answers = 7;
            assert_eq!(scene.after(27, 30), None, "a prompt of a million tokens");
        }
    }

    #[test]
    fn an_engine_that_waits_for_memory_shows_no_places() {
        let mut scene = scene();
        for kv_use in [Some(0.5), Some(0.97), Some(1.0), Some(f32::NAN), None].repeat(5) {
            let report = LoadReport { running: 100, waiting: 50, kv_use, ..LoadReport::default() };
            assert_eq!(scene.report(report), None, "{kv_use:?}");
        }
    }

    #[test]
    fn more_running_requests_raise_the_number_or_refute_it() {
        let mut scene = scene();
        assert_eq!(scene.after_full(64), Some(64));
        assert_eq!(scene.after(128, 30), None, "the engine has more");
        assert_eq!(scene.after_full(128), Some(128));
        assert_eq!(scene.after(129, 0), None, "it has at least one more");
    }

    #[test]
    fn an_engine_with_fewer_places_than_before_is_learned_again() {
        let mut scene = scene();
        assert_eq!(scene.after_full(256), Some(256));
        assert_eq!(scene.after_full(64), Some(256), "it may wait for something else");
        let last = (0..610).map(|_| scene.after(64, 90)).last().unwrap();
        assert_eq!(last, Some(64), "it has not had 256 running for ten minutes");
    }

    #[test]
    fn a_number_that_nothing_confirms_is_forgotten() {
        let mut scene = scene();
        assert_eq!(scene.after_full(20), Some(20));
        assert_eq!((0..599).map(|_| scene.after(20, 0)).last().unwrap(), Some(20));
        assert_eq!((0..3).map(|_| scene.after(20, 0)).last().unwrap(), None, "the worker is tried with more");
    }

    #[test]
    fn absurd_reports_show_no_places_and_do_no_lasting_harm() {
        let mut scene = scene();
        for running in [0, u32::MAX, u32::from(u16::MAX) + 1].repeat(3) {
            assert_eq!(scene.after(running, u32::MAX), None, "{running} run");
        }
        assert_eq!(scene.after_full(256), Some(256));
        assert_eq!(scene.after(60_000, 0), None);
        assert_eq!((0..610).map(|_| scene.after(256, 40)).last().unwrap(), Some(256));
    }

    #[test]
    fn an_engine_that_reports_its_places_is_believed() {
        let mut scene = scene();
        let told = |places| LoadReport { places: Some(places), ..LoadReport::default() };
        assert_eq!(scene.report(told(8)), Some(8));
        assert_eq!(scene.report(told(4)), Some(4), "they are fewer now");
        assert_eq!(scene.report(told(1_000_000)), Some(u16::MAX), "as good as unlimited");
        assert_eq!(scene.report(told(0)), None, "that says nothing");
    }

    #[test]
    fn four_engines_of_a_kind_that_are_full_alike_show_the_number() {
        let (mut kind, mut at) = (FullEngines::default(), Micros::from_secs(1_000));
        let mut fleet = [PlaceReports::default(); 8];
        let mut places = |index: usize, running, waiting, passed| {
            at = at + passed;
            let report = LoadReport { running, waiting, kv_use: Some(0.1), at, ..LoadReport::default() };
            fleet[index].report((WorkerId(index as u16), 0), &report, &mut kind);
            fleet[index].places()
        };
        let soon = Micros::from_millis(100);
        let three = [0, 1, 0, 1, 2, 1, 2, 0].map(|index| places(index, 256, 90, soon));
        assert_eq!(three, [None; 8], "three engines, however often");
        assert_eq!(places(3, 200, 90, soon), None, "another number");
        assert_eq!([0, 1, 2].map(|index| places(index, 256, 90, soon)), [None; 3], "three again");
        assert_eq!(places(4, 60, 0, soon), None, "nothing waits there");
        assert_eq!(places(5, 256, 90, Micros::from_secs(61)), None, "the others were full a minute ago");
        assert_eq!([0, 1].map(|index| places(index, 256, 90, soon)), [None; 2]);
        assert_eq!(places(6, 255, 90, soon), Some(255));
        assert_eq!(places(7, 256, 90, soon), Some(256));
    }

    #[test]
    fn engines_of_a_kind_that_run_more_and_more_show_nothing() {
        let mut kind = FullEngines::default();
        let mut fleet = [PlaceReports::default(); 8];
        for running in [21, 41, 62, 82, 103] {
            for (index, places) in fleet.iter_mut().enumerate() {
                // The first time nothing tells them from full engines.
                let running = if running == 21 { running + index as u32 % 3 } else { running };
                let report = LoadReport { running, waiting: 26, kv_use: Some(0.1), ..LoadReport::default() };
                places.report((WorkerId(index as u16), 0), &report, &mut kind);
                assert_eq!(places.places(), None, "{running} on {index}");
            }
        }
    }

    #[test]
    fn engines_that_run_slowly_more_and_more_show_nothing() {
        for (first, more, engines, seconds) in
            [(20, 1, 1, 1), (20, 1, 4, 1), (20, 1, 4, 7), (128, 2, 4, 1), (300, 5, 8, 3)]
        {
            let (mut kind, mut fleet) = (FullEngines::default(), vec![PlaceReports::default(); engines]);
            for round in 0..400 {
                let running = first + more * (round / seconds);
                for (index, places) in fleet.iter_mut().enumerate() {
                    let at = Micros::from_millis(1_000_000 + u64::from(round) * 1_000 + 100 * index as u64);
                    let report =
                        LoadReport { running, waiting: 90, kv_use: Some(0.2), at, ..LoadReport::default() };
                    places.report((WorkerId(index as u16), round * running / 4), &report, &mut kind);
                    // Before the number has grown for the first time, nothing tells it from one that stays.
                    let is_early = running <= first + 2 * tolerance(running);
                    assert!(is_early || places.places().is_none(), "{running} on {index} of {engines}");
                }
            }
            // The growth ends at 4,000, long before the last report.
            let shown = (0..100).map(|round| {
                let at = Micros::from_secs(1_400 + u64::from(round));
                let report = LoadReport {
                    running: 4_000,
                    waiting: 900,
                    kv_use: Some(0.2),
                    at,
                    ..LoadReport::default()
                };
                fleet[0].report((WorkerId(0), round * 1_000), &report, &mut kind);
                fleet[0].places()
            });
            assert_eq!(shown.last().unwrap(), Some(4_000));
        }
    }
}
