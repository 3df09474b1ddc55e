//! A run of steps equals its steps: the same events at the same times, and the same final state.

use proptest::prelude::*;

use super::*;

/// A client's action, with its delay after the previous one.
#[derive(Clone, Debug)]
struct Act {
    after_us: u64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Submit { shared: u64, text: u64, prompt_tokens: u32, output_tokens: u32 },
    Cancel { nth: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let submit = (0_u64..6, 0_u64..4, 1_u32..40, 1_u32..90).prop_map(
        |(shared, text, prompt_tokens, output_tokens)| What::Submit {
            shared,
            text,
            prompt_tokens,
            output_tokens,
        },
    );
    let what = prop_oneof![5 => submit, 1 => (0_usize..20).prop_map(|nth| What::Cancel { nth })];
    (prop_oneof![Just(0), 1_u64..200_000], what).prop_map(|(after_us, what)| Act { after_us, what })
}

fn any_config() -> impl Strategy<Value = Config> {
    let caching = prop_oneof![4 => Just(PrefixCaching::On), 1 => Just(PrefixCaching::Off)];
    let block_size = prop_oneof![Just(1_u32), Just(2), Just(4), Just(16)];
    (block_size, 140_u64..400, 4_u32..40, 1_u32..9, caching).prop_map(
        |(block_size, kv_tokens, step_tokens_max, sequences_max, prefix_caching)| Config {
            block_size,
            kv_tokens: kv_tokens.max(u64::from(block_size)),
            step_tokens_max,
            sequences_max,
            prefix_caching,
            ..config(1)
        },
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Gait {
    Steps,
    Runs,
}

/// An engine with its driver. A step that ends at the time of an action ends before it.
struct Driven {
    gait: Gait,
    engine: Engine,
    ids: Vec<SequenceId>,
    /// Events with their times.
    events: Vec<(Micros, Happened)>,
}

impl Driven {
    fn new(gait: Gait, config: Config) -> Driven {
        Driven { gait, engine: Engine::new(config).unwrap(), ids: Vec::new(), events: Vec::new() }
    }

    fn begin(&mut self, now: Micros) -> Option<Micros> {
        match self.gait {
            Gait::Steps => self.engine.begin_step(now),
            Gait::Runs => self.engine.begin_run(now),
        }
    }

    fn advance(&mut self, mut now: Micros, until: Micros) {
        while let Some(ends) = self.begin(now).filter(|&ends| ends <= until) {
            let mut happened = Vec::new();
            self.engine.finish_step(&mut happened);
            self.events.extend(happened.into_iter().map(|happened| (ends, happened)));
            now = ends;
        }
    }

    fn act(&mut self, now: Micros, what: &What) {
        self.engine.catch_up(now);
        match *what {
            What::Submit { shared, text, prompt_tokens, output_tokens } => {
                let block_size = self.engine.config().block_size;
                let blocks = u64::from((prompt_tokens + output_tokens) / block_size);
                let name = |block| if block < shared { name(0, block) } else { name(text, block) };
                let request =
                    Request { chain: (0..blocks).map(name).collect(), prompt_tokens, output_tokens };
                self.ids.extend(self.engine.submit(now, request));
            }
            What::Cancel { nth } => self.ids.get(nth).into_iter().for_each(|&id| self.engine.cancel(id)),
        }
    }

    /// All events except later tokens, which a run does not report, and without the times of cache events,
    /// which a run reports at its end.
    fn milestones(&self) -> Vec<(Option<Micros>, Happened)> {
        let is_told = |happened: &Happened| !matches!(happened, Happened::Token { index: 1.., .. });
        let events = self.events.iter().filter(|(_, happened)| is_told(happened));
        let cache = |happened: &Happened| {
            matches!(happened, Happened::Stored { .. } | Happened::Removed { .. } | Happened::Cleared)
        };
        events.map(|&(at, happened)| ((!cache(&happened)).then_some(at), happened)).collect()
    }

    fn state(&self) -> String {
        let engine = &self.engine;
        format!("{:?} {:?} {:?}", engine.stats(), engine.step_ends, engine.scheduler.snapshot())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_run_equals_its_steps(config in any_config(), acts in prop::collection::vec(act(), 1..40)) {
        let mut both = [Gait::Steps, Gait::Runs].map(|gait| Driven::new(gait, config.clone()));
        let mut now = Micros::ZERO;
        for Act { after_us, what } in &acts {
            let until = now + Micros(*after_us);
            both.iter_mut().for_each(|driven| {
                driven.advance(now, until);
                driven.act(until, what);
            });
            prop_assert_eq!(both[0].state(), both[1].state());
            now = until;
        }
        both.iter_mut().for_each(|driven| driven.advance(now, Micros(u64::MAX)));
        prop_assert_eq!(both[0].milestones(), both[1].milestones());
        prop_assert_eq!(both[0].state(), both[1].state());
        both[1].engine.scheduler.check();
    }
}

#[test]
fn a_lone_sequence_decodes_in_one_run() {
    let mut engine = engine(1_000);
    submit(&mut engine, request(0, 40, 500));
    let first = engine.begin_run(Micros::ZERO).unwrap();
    engine.finish_step(&mut Vec::new());
    let ends = engine.begin_run(first).unwrap();
    let mut happened = Vec::new();
    engine.finish_step(&mut happened);
    assert_eq!(engine.stats().finished, 1, "499 steps were one run");
    assert!(ends.since(first) > Micros::from_millis(499 * 4));
    assert_eq!(stored(&happened).len(), 124);
}
