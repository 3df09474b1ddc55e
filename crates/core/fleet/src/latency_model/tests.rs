//! How soon the model is right, and what it survives.

use proptest::prelude::*;

use super::*;

/// Prefills of all lengths, some mostly cached.
fn features(n: u32) -> PrefillFeatures {
    PrefillFeatures {
        miss_tokens: 20 + (n * 7_919) % 6_000,
        cached_tokens: (n * 3_331) % 9_000,
        position: if n.is_multiple_of(3) { QueuePosition::Behind } else { QueuePosition::Head },
        ..PrefillFeatures::default()
    }
}

/// What an engine takes that is so many times slower than the prior, with a tenth of noise.
fn truth_ms(features: &PrefillFeatures, factor: f64, n: u32) -> f64 {
    let noise = 0.9 + (u64::from(n) * 2_654_435 % 1_000) as f64 / 5_000.0;
    factor * noise * (8.0 + f64::from(features.miss_tokens) * 0.03)
}

/// A step whose cached tokens were reported.
fn verified(features: &PrefillFeatures, took_ms: f64) -> ObservedStep {
    let features = features.vector();
    ObservedStep { features, features_if_cold: features, took_ms, verified: Verified::Yes }
}

/// A step of which only first tokens are known.
fn predicted(features: &PrefillFeatures, took_ms: f64) -> ObservedStep {
    let features_if_cold = features.cold().vector();
    ObservedStep { features: features.vector(), features_if_cold, took_ms, verified: Verified::No }
}

proptest! {
    /// Decisions compute a cost without divisions. It is the product of coefficients and features that the fit minimizes.
    #[test]
    fn a_cost_is_the_product_with_the_features(
        tokens in prop::array::uniform5(0..2_000_000_u32),
        context_tokens in 0..100_000_000_u64,
        is_behind in any::<bool>(),
        ms in prop::array::uniform8(0.0..50.0_f32),
    ) {
        let [miss_tokens, cached_tokens, restored_tokens, decoding, crowded_tokens] = tokens;
        let position = if is_behind { QueuePosition::Behind } else { QueuePosition::Head };
        let features = PrefillFeatures {
            miss_tokens, cached_tokens, restored_tokens, decoding, context_tokens, crowded_tokens, position,
        };
        let product: f64 = ms.iter().zip(features.vector()).map(|(ms, feature)| f64::from(*ms) * feature).sum();
        let cost_ms = f64::from(PrefillCost { ms, scale: 1.0 }.prefill_ms(&features));
        prop_assert!((cost_ms - product).abs() <= 1e-5 * product, "{cost_ms} and {product}");
    }
}

fn teach(model: &mut LatencyModel, factor: f64, answers: std::ops::Range<u32>) {
    for n in answers {
        model.observe(&verified(&features(n), truth_ms(&features(n), factor, n)));
    }
}

/// Observed over expected: the median, and how many are within 0.67 and 1.5.
fn accuracy(model: &LatencyModel, factor: f64) -> (f64, f64) {
    let ratio = |n| truth_ms(&features(n), factor, n) / f64::from(model.cost().prefill_ms(&features(n)));
    let mut ratios: Vec<f64> = (10_000..10_100).map(ratio).collect();
    let within = ratios.iter().filter(|ratio| (0.67..=1.5).contains(*ratio)).count() as f64 / 100.0;
    (median(&mut ratios).unwrap(), within)
}

fn assert_right(model: &LatencyModel, factor: f64, why: &str) {
    let (median, within) = accuracy(model, factor);
    assert!((0.9..1.1).contains(&median), "{why}, {factor} times: median {median}");
    assert!(within >= 0.8, "{why}, {factor} times: {within} within");
}

const FACTORS: [f64; 5] = [10.0, 4.0, 2.0, 1.0, 0.25];

#[test]
fn thirty_answers_are_enough_whatever_the_speed_is() {
    for factor in FACTORS.into_iter().chain([100.0, 0.1]) {
        let mut model = LatencyModel::new();
        teach(&mut model, factor, 0..30);
        assert_right(&model, factor, "fresh");
    }
}

#[test]
fn three_answers_correct_the_scale() {
    for factor in FACTORS {
        let mut model = LatencyModel::new();
        teach(&mut model, factor, 0..3);
        let (median, _) = accuracy(&model, factor);
        assert!((0.5..2.0).contains(&median), "{factor}: {median}");
    }
}

#[test]
fn five_lies_in_twenty_are_overcome_by_the_thirtieth_answer() {
    for factor in FACTORS {
        for (lie, times) in [("long", 150.0), ("short", 0.01)] {
            type Place = (&'static str, fn(u32) -> bool);
            let places: [Place; 3] = [
                ("first", |n| n < 5),
                ("last", |n| (15..20).contains(&n)),
                ("spread", |n| n < 20 && n % 4 == 1),
            ];
            for (place, is_lie) in places {
                let mut model = LatencyModel::new();
                for n in 0..30 {
                    let times = if is_lie(n) { times } else { 1.0 };
                    let took_ms = times * truth_ms(&features(n), factor, n);
                    model.observe(&verified(&features(n), took_ms));
                }
                assert_right(&model, factor, &format!("{lie} lies {place}"));
            }
        }
    }
}

#[test]
fn a_change_of_speed_is_learned_from_thirty_answers() {
    for (before, after) in [(1.0, 4.0), (4.0, 1.0), (1.0, 10.0), (10.0, 0.25), (1.0, 1.6), (1.0, 0.6)] {
        let mut model = LatencyModel::new();
        teach(&mut model, before, 0..300);
        teach(&mut model, after, 300..330);
        assert_right(&model, after, &format!("after {before}"));
    }
}

#[test]
fn a_stall_now_and_then_hardly_matters() {
    let mut model = LatencyModel::new();
    for n in 0..400 {
        let stall = if n % 9 == 8 { 50.0 } else { 1.0 };
        model.observe(&verified(&features(n), stall * truth_ms(&features(n), 2.0, n)));
    }
    assert_right(&model, 2.0, "stalls");
}

/// What a model expects of a hundred prompts that come at once.
fn burst_ms(model: &LatencyModel, miss_tokens: u32) -> f64 {
    let of = |position| PrefillFeatures { miss_tokens, position, ..PrefillFeatures::default() };
    let cost = model.cost();
    f64::from(cost.prefill_ms(&of(QueuePosition::Head)) + 99.0 * cost.prefill_ms(&of(QueuePosition::Behind)))
}

#[test]
fn overhead_of_short_prompts_does_not_multiply_the_price_of_a_token() {
    let short = |n: u32| PrefillFeatures { miss_tokens: 20 + n * 37 % 180, ..PrefillFeatures::default() };
    for answers in [3, 12, 40] {
        let mut model = LatencyModel::new();
        for n in 0..answers {
            let overhead_ms = 50.0 + f64::from(n * 83 % 250);
            model.observe(&verified(
                &short(n),
                overhead_ms + f64::from(PrefillCost::PRIOR.prefill_ms(&short(n))),
            ));
        }
        for miss_tokens in [100, 1_000] {
            let off = burst_ms(&model, miss_tokens) / burst_ms(&LatencyModel::new(), miss_tokens);
            assert!((0.2..5.5).contains(&off), "{off} times after {answers} answers, {miss_tokens} tokens");
        }
        let expected_ms = model.expected_ms(&short(1).vector());
        assert!((50.0..350.0).contains(&expected_ms), "the overhead is expected: {expected_ms} ms");
        // Without the overhead, and with longer prompts, the model is right as soon as any other.
        teach(&mut model, 1.0, 0..30);
        assert_right(&model, 1.0, "after overhead");
    }
}

#[test]
fn prompts_that_are_all_alike_keep_the_priors_proportions() {
    let alike = PrefillFeatures { miss_tokens: 416, cached_tokens: 6_000, ..PrefillFeatures::default() };
    let mut model = LatencyModel::new();
    (0..200).for_each(|_| _ = model.observe(&verified(&alike, 81.0)));
    let cost = model.cost();
    assert!((75.0..85.0).contains(&cost.prefill_ms(&alike)), "{cost:?}");
    let cold = PrefillFeatures { miss_tokens: 6_416, ..PrefillFeatures::default() };
    assert!(
        cost.prefill_ms(&cold) > 5.0 * cost.prefill_ms(&alike),
        "what misses more takes longer: {cost:?}"
    );
}

#[test]
fn first_tokens_teach_before_any_answer_has_ended() {
    for factor in FACTORS {
        let mut model = LatencyModel::new();
        for n in 0..30 {
            model.observe(&predicted(&features(n), truth_ms(&features(n), factor, n)));
        }
        let (median, _) = accuracy(&model, factor);
        assert!((0.5..2.0).contains(&median), "{factor}: {median}");
    }
}

#[test]
fn a_first_token_that_took_as_long_as_a_cold_prompt_is_no_sign_of_a_slow_engine() {
    let mut model = LatencyModel::new();
    let warm = PrefillFeatures { miss_tokens: 16, cached_tokens: 12_000, ..PrefillFeatures::default() };
    let cold_ms = f64::from(PrefillCost::PRIOR.prefill_ms(&warm.cold()));
    (0..4).for_each(|_| _ = model.observe(&predicted(&warm, 1.1 * cold_ms)));
    assert!((0.8..1.5).contains(&model.cost().scale), "{:?}", model.cost());
}

#[test]
fn what_answers_tell_replaces_what_was_predicted() {
    let warm = PrefillFeatures { miss_tokens: 2_000, cached_tokens: 6_000, ..PrefillFeatures::default() };
    let truth = |n| truth_ms(&features(n), 1.0, n);
    let (mut model, mut lies) = (LatencyModel::new(), Vec::new());
    // The engine had everything, and the router did not know.
    for n in 0..20 {
        lies.push((n, model.observe(&predicted(&warm, truth(n)))));
    }
    lies.into_iter().for_each(|(n, number)| model.revise(number, &verified(&features(n), truth(n))));
    assert_right(&model, 1.0, "corrected");
    assert!(model.window.len() <= 20, "each step counts once");
    (20..300).for_each(|n| _ = model.observe(&predicted(&features(n), truth(n))));
    let newest = model.next_number;
    model.revise(3, &verified(&features(3), truth(3)));
    assert_eq!(model.window.back().unwrap().number, newest, "one that took too long counts as new");
}

#[test]
fn observed_cached_tokens_replace_predicted_ones() {
    let predicted =
        PrefillFeatures { miss_tokens: 100, cached_tokens: 900, restored_tokens: 300, ..Default::default() };
    let observed = |prompt_tokens, cached_tokens| {
        let seen = predicted.observed(ObservedPrompt { prompt_tokens, cached_tokens });
        (seen.miss_tokens, seen.cached_tokens, seen.restored_tokens)
    };
    assert_eq!(observed(1_010, 900), (110, 900, 300));
    assert_eq!(observed(1_010, 700), (310, 700, 100), "a part was restored");
    assert_eq!(observed(1_010, 0), (1_010, 0, 0));
    assert_eq!(observed(10, u32::MAX), (0, 10, 0), "an engine that lies");
    assert_eq!(predicted.cold().miss_tokens, 1_000);
}

#[test]
fn a_model_comes_back_from_its_numbers() {
    let mut model = LatencyModel::new();
    teach(&mut model, 3.0, 0..100);
    let mut back = LatencyModel::of_numbers(&model.numbers()).unwrap();
    assert_right(&back, 3.0, "restored");
    teach(&mut back, 3.0, 100..103);
    assert_right(&back, 3.0, "restored, and three answers more");
    assert!(LatencyModel::of_numbers(&model.numbers()[1..]).is_none());
    for at in 0..FEATURES {
        for corrupt in [1e300, f64::INFINITY, f64::NAN, -1.0] {
            let mut numbers = model.numbers();
            numbers[at] = corrupt;
            assert!(LatencyModel::of_numbers(&numbers).is_none(), "{corrupt} at {at}");
        }
    }
}

/// Anything at all, and what it is said to have taken.
fn anything() -> impl Strategy<Value = (PrefillFeatures, f64)> {
    let tokens = prop_oneof![0_u32..200, 0_u32..20_000, any::<u32>()];
    let took_ms =
        prop_oneof![Just(0.0), 0.0..10.0, 0.0..5_000.0, 0.0..1e9, Just(f64::INFINITY), Just(f64::NAN)];
    (tokens.clone(), tokens, 0_u32..300, any::<u32>(), took_ms).prop_map(
        |(miss_tokens, cached_tokens, decoding, context, took_ms)| {
            let features = PrefillFeatures {
                miss_tokens,
                cached_tokens,
                decoding,
                context_tokens: u64::from(context),
                ..PrefillFeatures::default()
            };
            (features, took_ms)
        },
    )
}

proptest! {
    #[test]
    fn whatever_was_learned_before_a_hundred_true_answers_are_enough(
        nonsense in prop::collection::vec(anything(), 0..200),
        factor in prop::sample::select(&FACTORS[..]),
    ) {
        let mut model = LatencyModel::new();
        for (features, took_ms) in &nonsense {
            model.observe(&verified(features, *took_ms));
            let cost = model.cost();
            prop_assert!(cost.ms.iter().all(|ms| ms.is_finite() && *ms >= 0.0), "{cost:?}");
        }
        teach(&mut model, factor, 0..100);
        let (median, within) = accuracy(&model, factor);
        prop_assert!((0.8..1.25).contains(&median), "median {median}");
        prop_assert!(within >= 0.8, "{within} within");
    }
}

proptest! {
    /// The quick look at ratios may only rule out what the logarithms rule out.
    #[test]
    fn ratios_never_hide_a_change_of_speed(factors in proptest::collection::vec(0.5_f64..2.0, 1..LATEST), edge in any::<bool>()) {
        let mut model = LatencyModel::new();
        for (n, factor) in factors.iter().enumerate() {
            let features = features(n as u32).vector();
            let factor = if edge { OFF_FACTOR } else { *factor };
            let took_ms = factor * (model.expected_ms(&features) + RESOLUTION_MS) - RESOLUTION_MS;
            model.window.push_back(Observation { number: n as u64, features, took_ms, weight: 1.0 });
        }
        let log = |seen: &Observation| log_ratio(seen.took_ms, model.expected_ms(&seen.features));
        let needed = LATEST_MIN.max((2 * model.window.len()).div_ceil(3));
        let off = |sign: f64| model.window.iter().filter(|seen| sign * log(seen) > OFF_FACTOR.ln()).count();
        if off(1.0) >= needed || off(-1.0) >= needed {
            prop_assert!(model.may_be_shifted(model.window.iter(), needed));
        }
    }
}
