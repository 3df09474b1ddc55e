//! The queue against what an engine does.

use super::*;

/// A first token comes, and all answers of the step before it end without a report of cached tokens. Returns that step if it can
/// be learned from.
fn first_token(queue: &PrefillQueue, ticket: Ticket, now: Micros) -> Option<ObservedStep> {
    queue.first_token(ticket, &Mutex::new(LatencyModel::new()), now);
    let mut state = queue.state.lock();
    state.steps.abandon_older();
    state.steps.take_complete(Micros::ZERO).map(|(step, _)| step)
}

/// Books a prompt of so many tokens, at a millisecond for 40.
fn book(queue: &PrefillQueue, miss_tokens: u32, now: Micros) -> Ticket {
    book_one(queue, miss_tokens, Delivery::Streamed, now)
}

fn book_one(queue: &PrefillQueue, miss_tokens: u32, delivery: Delivery, now: Micros) -> Ticket {
    let features = PrefillFeatures { miss_tokens, ..PrefillFeatures::default() };
    queue.book(features, delivery, miss_tokens as f32 / 40.0, now)
}

#[test]
fn what_is_booked_lies_ahead_until_it_is_computed() {
    let queue = PrefillQueue::default();
    assert_eq!(queue.forecast(Micros(0)).queue_ms, 0.0);
    let long = book(&queue, 10_000, Micros(1_000));
    let alone = queue.forecast(Micros(1_000));
    assert_eq!(alone.queue_ms, 250.0);
    assert_eq!((alone.position, alone.prompts), (QueuePosition::Behind, 1));
    let later = queue.forecast(Micros(101_000));
    assert!((alone.queue_ms - later.queue_ms - 100.0).abs() < 1.0, "time has passed: {later:?}");
    book(&queue, 1_000, Micros(101_000));
    let overdue = queue.forecast(Micros(2_000_000)).queue_ms;
    assert_eq!(overdue, 25.0 + 62.5, "the second one has not begun, and the first one is not done");
    first_token(&queue, long, Micros(9_000_000));
    assert_eq!(queue.forecast(Micros(9_000_000)).prompts, 1);
}

#[test]
fn a_first_token_shows_that_all_well_before_it_are_done() {
    let queue = PrefillQueue::default();
    let without_answer = book(&queue, 5_000, Micros(0));
    let answered = book(&queue, 100, REORDERED_WITHIN);
    first_token(&queue, answered, Micros(1_200_000));
    assert_eq!(
        queue.forecast(Micros(1_200_000)),
        QueueForecast { idle: Micros(200_000), relative_latency: 1.0, ..QueueForecast::default() }
    );
    let next = book(&queue, 100, Micros(1_300_000));
    let batch = first_token(&queue, next, Micros(1_310_000)).unwrap();
    assert_eq!(
        (batch.features[2], batch.took_ms),
        (5.1, 1_200.0),
        "the tokens of the prompt without an answer took their part of it"
    );
    queue.release(without_answer);
    assert_eq!(queue.forecast(Micros(1_400_000)).queue_ms, 0.0, "released once");
}

#[test]
fn a_burst_that_the_engine_computes_in_another_order_stays_ahead_until_it_is_computed() {
    let queue = PrefillQueue::default();
    let burst: Vec<Ticket> = (0..16).map(|n| book(&queue, 4_000, Micros(n * 100))).collect();
    // The last request was the engine's first.
    for (n, &ticket) in burst.iter().rev().enumerate() {
        let at = Micros(100_000 * (n as u64 + 1));
        let step = first_token(&queue, ticket, at);
        let (left, forecast) = (15 - n, queue.forecast(at));
        assert_eq!((forecast.prompts as usize, forecast.queue_ms), (left, 100.0 * left as f32));
        if let Some(step) = step {
            assert_eq!((step.features[2], step.took_ms), (4.0, 100.0), "each is a step of its own");
        }
    }
}

#[test]
fn prompts_of_one_step_are_learned_from_together() {
    let queue = PrefillQueue::default();
    let tickets = [1_000, 2_000, 3_000].map(|tokens| book(&queue, tokens, Micros(0)));
    assert!(first_token(&queue, tickets[0], Micros(150_000)).is_none(), "it may not be complete");
    assert!(first_token(&queue, tickets[1], Micros(150_100)).is_none());
    let batch = first_token(&queue, tickets[2], Micros(300_000)).unwrap();
    assert_eq!(batch.took_ms, 150.1);
    assert_eq!(batch.features[2], 3.0, "three thousand tokens in sum");
}

#[test]
fn a_burst_whose_first_tokens_trickle_in_teaches_what_its_steps_took() {
    let (queue, model) = (PrefillQueue::default(), Mutex::new(LatencyModel::new()));
    // Ten bursts of 64 prompts of 1,000 tokens at 20 ms: steps of eight, whose first tokens come a millisecond apart, in any order.
    for burst in 0..10_u64 {
        let at = Micros(burst * 10_000_000);
        let tickets: Vec<Ticket> = (0..64).map(|n| book(&queue, 1_000, at + Micros(n * 50))).collect();
        for step in 0..8_u64 {
            for n in 0..8_u64 {
                let ticket = tickets[(step * 8 + (n * 5 + burst) % 8) as usize];
                let now = at + Micros((step + 1) * 160_000 + n * 1_000);
                queue.first_token(ticket, &model, now);
                let prompt = ObservedPrompt { prompt_tokens: 1_000, cached_tokens: 0 };
                queue.report(ticket, prompt, &model, now + Micros(50));
            }
        }
    }
    let features =
        PrefillFeatures { miss_tokens: 1_000, position: QueuePosition::Behind, ..Default::default() };
    let ms = model.lock().cost().prefill_ms(&features);
    assert!((15.0..25.0).contains(&ms), "{ms}");
}

#[test]
fn a_first_token_that_comes_long_after_a_later_prompts_says_nothing() {
    let queue = PrefillQueue::default();
    let (slow, fast) = (book(&queue, 5_000, Micros(0)), book(&queue, 100, Micros(1_000_000)));
    first_token(&queue, fast, Micros(1_100_000));
    let next = book(&queue, 1_000, Micros(1_100_000));
    let before = queue.forecast(Micros(1_110_000));
    assert!(first_token(&queue, slow, Micros(1_110_000)).is_none());
    assert_eq!(queue.forecast(Micros(1_110_000)), before, "the running prefill did not start over");
    let batch = first_token(&queue, next, Micros(1_125_000)).unwrap();
    assert_eq!((batch.features[2], batch.took_ms), (5.1, 1_100.0), "the two are learned from once");
}

#[test]
fn nothing_is_learned_from_the_time_of_a_prompt_that_was_given_up() {
    let queue = PrefillQueue::default();
    let (gone, next) = (book(&queue, 9_000, Micros(0)), book(&queue, 100, Micros(0)));
    queue.release(gone);
    assert!(first_token(&queue, next, Micros(100_000)).is_none());
    let last = book(&queue, 100, Micros(200_000));
    assert!(first_token(&queue, last, Micros(210_000)).is_none(), "the one before it is not told");
}

#[test]
fn a_prompt_behind_an_abandoned_one_has_not_started() {
    let queue = PrefillQueue::default();
    let (gone, next) = (book(&queue, 40_000, Micros(0)), book(&queue, 4_000, Micros(0)));
    queue.release(gone);
    assert_eq!(queue.forecast(Micros(900_000)).queue_ms, 100.0, "all of it lies ahead");
    first_token(&queue, next, Micros(1_000_000));
    book(&queue, 4_000, Micros(1_000_000));
    assert_eq!(queue.forecast(Micros(1_040_000)).queue_ms, 60.0);
}

/// A prompt of so many tokens, nothing of it cached, alone on its worker; its first token comes after so long.
fn work(queue: &PrefillQueue, model: &Mutex<LatencyModel>, tokens: u32, at: Micros, took: Micros) {
    let ticket = book(queue, tokens, at);
    queue.first_token(ticket, model, at + took);
    let prompt = ObservedPrompt { prompt_tokens: tokens, cached_tokens: 0 };
    queue.report(ticket, prompt, model, at + took + Micros(10_000));
}

#[test]
fn equal_workers_are_equally_fast_however_wrong_the_prior_is() {
    let (model, queues) = (Mutex::new(LatencyModel::new()), [(); 8].map(|()| PrefillQueue::default()));
    for n in 0..400_u32 {
        let (at, tokens) = (Micros(u64::from(n) * 10_000_000), 200 + n * 97 % 3_000);
        // Twenty times as slow as the prior.
        let took = Micros(200_000 + u64::from(tokens) * 500);
        work(&queues[n as usize % 8], &model, tokens, at, took);
    }
    let ratios = queues.map(|queue| queue.relative_latency(Micros(4_000_000_000)));
    assert!(ratios.iter().all(|ratio| (0.9..1.1).contains(ratio)), "{ratios:?}");
}

#[test]
fn the_model_learns_from_what_was_cached_and_not_from_what_was_predicted() {
    let (queue, model) = (PrefillQueue::default(), Mutex::new(LatencyModel::new()));
    // The cache was reset and the router does not know it: all but 416 tokens are predicted to be there.
    for n in 0..40_u64 {
        let features = PrefillFeatures { miss_tokens: 416, cached_tokens: 12_000, ..Default::default() };
        let at = Micros(n * 10_000_000);
        let ticket = queue.book(features, Delivery::Streamed, 12.0, at);
        queue.first_token(ticket, &model, at + Micros(330_000));
        let cached_tokens = if n < 5 { 0 } else { 12_000 };
        let took_ms = if n < 5 { 330 } else { 14 };
        let heard = at + Micros::from_millis(took_ms);
        queue.report(ticket, ObservedPrompt { prompt_tokens: 12_416, cached_tokens }, &model, heard);
        if n >= 5 {
            continue;
        }
        let cost = model.lock().cost();
        assert!(cost.ms[0] < 30.0, "answer {n}: {cost:?}");
    }
}

#[test]
fn without_reported_cached_tokens_a_step_that_took_as_long_as_a_cold_one_was_cold() {
    let (queue, model) = (PrefillQueue::default(), Mutex::new(LatencyModel::new()));
    let taught = |tokens: u32, cached: u32, took_ms: u64, n: u64| {
        let features =
            PrefillFeatures { miss_tokens: tokens - cached, cached_tokens: cached, ..Default::default() };
        let at = Micros(n * 10_000_000);
        let ticket = queue.book(features, Delivery::Streamed, 12.0, at);
        queue.first_token(ticket, &model, at + Micros::from_millis(took_ms));
        queue.abandon(ticket);
        let mut state = queue.state.lock();
        let (step, lesson) = state.steps.take_complete(at + Micros(9_000_000)).unwrap();
        learn(&step, lesson, &mut state.relative_latency, &mut model.lock());
    };
    (0..30).for_each(|n| taught(4_000, 0, 110, n));
    (30..60).for_each(|n| taught(12_400, 12_000, 340, n));
    let warm = PrefillFeatures { miss_tokens: 400, cached_tokens: 12_000, ..Default::default() };
    let warm_ms = model.lock().cost().prefill_ms(&warm);
    assert!(warm_ms < 60.0, "the prediction was wrong, not the engine slow: {warm_ms}");
}

#[test]
fn a_worker_that_looks_slow_is_tried_again_after_a_while() {
    let (queue, others) = (PrefillQueue::default(), PrefillQueue::default());
    let model = Mutex::new(LatencyModel::new());
    let at = |n: u64| Micros(n * 1_000_000);
    (0..100).for_each(|n| work(&others, &model, 1_000, at(n), Micros(30_000)));
    (100..112).for_each(|n| work(&queue, &model, 1_000, at(n), Micros(120_000)));
    let ratio = |n| queue.relative_latency(at(n));
    assert!(ratio(112) > 3.0, "{}", ratio(112));
    assert!(ratio(142) < 2.7 && ratio(142) > 1.5, "half of it after half a minute: {}", ratio(142));
    assert!(ratio(400) < 1.05, "{}", ratio(400));
}

#[test]
fn an_engine_that_stalls_is_not_taken_for_idle() {
    let queue = PrefillQueue::default();
    book(&queue, 400, Micros(0));
    assert_eq!(queue.forecast(Micros(100_000)).queue_ms, 2.5, "some are late, and none is free");
    assert_eq!(queue.forecast(Micros(500_000)).queue_ms, 302.5, "not that late");
    assert_eq!(queue.forecast(Micros(90_000_000)).queue_ms, 2_002.5, "up to a limit");
    let silent = PrefillQueue::default();
    book_one(&silent, 400, Delivery::Whole, Micros(0));
    assert_eq!(silent.forecast(Micros(90_000_000)).queue_ms, 0.0, "no answer was expected");
}

#[test]
fn after_a_restart_a_few_answers_tell_how_fast_it_is() {
    let (model, queue, others) =
        (Mutex::new(LatencyModel::new()), PrefillQueue::default(), PrefillQueue::default());
    let work = |queue: &PrefillQueue, n: u64, factor: u64| {
        let (at, tokens) = (Micros(n * 1_000_000), 500 + (n * 97 % 3_000) as u32);
        work(queue, &model, tokens, at, Micros(factor * (8_000 + u64::from(tokens) * 25)));
    };
    // Most requests go to the others: the model is theirs.
    (0..300).for_each(|n| work(&others, n, 1));
    for n in 300..600 {
        work(if n % 10 == 0 { &queue } else { &others }, n, if n % 10 == 0 { 4 } else { 1 });
    }
    let ratio = || queue.relative_latency(Micros(600_000_000));
    assert!(ratio() > 2.8, "{}", ratio());
    queue.doubt();
    assert!(ratio() > 2.8, "it is a guess, but the best there is");
    for n in 600..750 {
        work(if n % 10 == 0 { &queue } else { &others }, n, 1);
    }
    assert!(ratio() < 1.5, "{}", ratio());
}

#[test]
fn a_prompt_that_a_peer_saw_computed_leaves_the_queue() {
    let queue = PrefillQueue::default();
    let (theirs, ours) = (book(&queue, 4_000, Micros(0)), book(&queue, 1_000, Micros(0)));
    queue.done_elsewhere(theirs, Micros(90_000));
    let forecast = queue.forecast(Micros(90_000));
    assert_eq!((forecast.queue_ms, forecast.prompts), (25.0, 1));
    assert_eq!(queue.forecast(Micros(100_000)).queue_ms, 15.0, "ours has begun");
    assert!(first_token(&queue, ours, Micros(125_000)).is_none(), "it may not be complete");
    let alone = book(&queue, 2_000, Micros(200_000));
    queue.done_elsewhere(alone, Micros(260_000));
    let next = book(&queue, 1_000, Micros(300_000));
    let both = first_token(&queue, next, Micros(330_000)).unwrap();
    assert_eq!((both.features[2], both.took_ms), (5.0, 125.0), "theirs and ours, since both were booked");
    let last = book(&queue, 1_000, Micros(400_000));
    let one = first_token(&queue, last, Micros(420_000)).unwrap();
    assert_eq!(
        (one.features[2], one.took_ms),
        (1.0, 30.0),
        "what was done before it was booked is not its own"
    );
}

#[test]
fn a_prompt_whose_answer_comes_whole_is_done_when_its_time_has_passed() {
    let queue = PrefillQueue::default();
    let whole = [(); 3].map(|()| book_one(&queue, 4_000, Delivery::Whole, Micros(0)));
    let answered = book(&queue, 4_000, Micros(0));
    book(&queue, 4_000, Micros(0));
    let ahead = |at_ms: u64| {
        let forecast = queue.forecast(Micros(at_ms * 1_000));
        (forecast.queue_ms, forecast.prompts)
    };
    assert_eq!(ahead(0), (500.0, 5));
    assert_eq!(ahead(250), (250.0, 5), "those at the head are passing by");
    assert_eq!(ahead(350), (150.0, 2), "they have passed");
    assert_eq!(ahead(1_300), (125.0, 2), "a streamed prompt is not done before its first token");
    book_one(&queue, 4_000, Delivery::Whole, Micros(1_300_000));
    assert_eq!(ahead(1_300), (225.0, 3));
    whole.into_iter().for_each(|ticket| queue.release(ticket));
    assert_eq!(ahead(1_300), (225.0, 3), "their answers change nothing");
    assert!(first_token(&queue, answered, Micros(9_000_000)).is_none());
    let last = book(&queue, 40, Micros(9_000_000));
    let batch = first_token(&queue, last, Micros(9_500_000)).unwrap();
    assert_eq!((batch.features[2], batch.took_ms), (16.0, 9_000.0), "all four are learned from together");
}

#[test]
fn whole_answers_that_end_early_late_or_never_stop_no_clock() {
    let queue = PrefillQueue::default();
    let [early, gone, next, last] = [(); 4].map(|()| book_one(&queue, 4_000, Delivery::Whole, Micros(0)));
    let queue_ms = |at_ms: u64| queue.forecast(Micros(at_ms * 1_000)).queue_ms;
    queue.release(early);
    assert_eq!((queue_ms(50), queue_ms(150)), (300.0, 250.0), "the next one begins when it was expected to");
    queue.release(gone);
    queue.release(next);
    assert_eq!((queue_ms(350), queue_ms(900)), (50.0, 0.0));
    let streamed = book(&queue, 4_000, Micros(900_000));
    let behind = book_one(&queue, 4_000, Delivery::Whole, Micros(900_000));
    queue.release(streamed);
    assert_eq!(queue_ms(1_000), 100.0, "abandoned: the next prompt starts at the next read");
    assert_eq!(queue_ms(1_060), 40.0);
    [last, behind].into_iter().for_each(|ticket| queue.release(ticket));
    assert_eq!((queue_ms(1_060), queue.forecast(Micros(1_060_000)).prompts), (0.0, 0));
}

#[test]
fn an_engine_that_hangs_is_late_though_its_clients_give_up() {
    let queue = PrefillQueue::default();
    let tickets = [(); 3].map(|()| book(&queue, 400, Micros(0)));
    queue.release(tickets[0]);
    let forecast = queue.forecast(Micros(1_000_000));
    assert_eq!(forecast.queue_ms, 800.0 + 20.0, "late, and two before it");
    first_token(&queue, tickets[1], Micros(1_000_000));
    assert_eq!(queue.forecast(Micros(1_010_000)).queue_ms, 2.5, "it has spoken");
}

#[test]
fn the_next_of_a_disturbed_step_is_not_learned_from_alone() {
    let queue = PrefillQueue::default();
    let [gone, one, two] = [4_000; 3].map(|tokens| book(&queue, tokens, Micros(0)));
    queue.release(gone);
    assert!(first_token(&queue, one, Micros(300_000)).is_none());
    assert!(first_token(&queue, two, Micros(300_100)).is_none());
    let later = book(&queue, 40, Micros(400_000));
    assert!(first_token(&queue, later, Micros(401_000)).is_none(), "both are of that step");
    let last = book(&queue, 40, Micros(500_000));
    assert_eq!(first_token(&queue, last, Micros(501_000)).unwrap().took_ms, 1.0);
}

#[test]
fn the_queue_stays_short_when_no_first_token_is_ever_observed() {
    let queue = PrefillQueue::default();
    (0..1_000_u64).for_each(|n| {
        book_one(&queue, 4_000, Delivery::Whole, Micros(n * 99_000));
    });
    assert!(queue.state.lock().prompts.len() <= DONE_MAX + 12, "{}", queue.state.lock().prompts.len());
    let forecast = queue.forecast(Micros(1_000 * 99_000));
    assert!((900.0..1_200.0).contains(&forecast.queue_ms), "a hundredth more than it can do: {forecast:?}");
}

#[test]
fn those_that_were_done_before_it_was_booked_took_their_time_before_it() {
    let queue = PrefillQueue::default();
    let theirs = [2_000, 2_000].map(|tokens| book(&queue, tokens, Micros(0)));
    queue.done_elsewhere(theirs[0], Micros(50_000));
    let ours = book(&queue, 2_000, Micros(60_000));
    queue.done_elsewhere(theirs[1], Micros(100_000));
    assert!(first_token(&queue, ours, Micros(150_000)).is_none(), "it may not be complete");
    let last = book(&queue, 40, Micros(200_000));
    let all = first_token(&queue, last, Micros(210_000)).unwrap();
    assert_eq!((all.features[2], all.took_ms), (6.0, 150.0));
}

#[test]
fn what_never_had_a_first_token_leaves_nothing_behind() {
    let queue = PrefillQueue::default();
    let tickets: Vec<Ticket> = (1..50).map(|tokens| book(&queue, tokens * 100, Micros(0))).collect();
    tickets.into_iter().for_each(|ticket| queue.release(ticket));
    assert_eq!((queue.forecast(Micros(1)).queue_ms, queue.forecast(Micros(1)).prompts), (0.0, 0));
}

#[test]
fn an_engine_that_reports_no_cached_tokens_is_learned_from_and_nothing_piles_up() {
    let (fast, slow) = (PrefillQueue::default(), PrefillQueue::default());
    let model = Mutex::new(LatencyModel::new());
    for request in 0..5_000u64 {
        let at = 1_000 * request;
        for (queue, ms) in [(&fast, 100), (&slow, 300)] {
            let ticket = book(queue, 1_000, Micros::from_millis(at));
            queue.first_token(ticket, &model, Micros::from_millis(at + ms));
            queue.abandon(ticket);
        }
    }
    let pending = [&fast, &slow].map(|queue| queue.state.lock().steps.len());
    assert!(pending.iter().all(|&steps| steps <= 2), "{pending:?}");
    let now = Micros::from_millis(1_000 * 5_000);
    let ratio = slow.relative_latency(now) / fast.relative_latency(now);
    assert!((2.0..4.0).contains(&ratio), "{ratio}");
}

#[test]
fn churn_is_the_share_of_the_cache_that_was_computed_lately() {
    let queue = PrefillQueue::default();
    book(&queue, 50_000, Micros(1));
    assert_eq!(queue.cache_churn(Micros(1)), None, "the size of the cache is not known");
    queue.set_kv_tokens(100_000);
    assert_eq!(queue.cache_churn(Micros(1)), Some(0.5));
    let later = Micros(1) + CHURN_HALF_LIFE;
    assert_eq!(queue.cache_churn(later), Some(0.25));
    book(&queue, 100_000, later);
    assert_eq!(queue.cache_churn(later), Some(1.25));
    assert_eq!(queue.cache_churn(Micros::ZERO), Some(1.25), "a clock that steps back does no harm");
    queue.clear_churn();
    assert_eq!(queue.cache_churn(later), Some(0.0));
}
