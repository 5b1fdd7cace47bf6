//! tokio's timer: the time of each operation, as bench/timer_table.py describes it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::time::{sleep_until, Instant, Sleep};

struct Stamps(Instant, Mutex<Vec<u64>>);

impl Wake for Stamps {
    fn wake(self: Arc<Self>) {
        let now = self.0.elapsed().as_nanos() as u64;
        self.1.lock().unwrap().push(now);
    }
}

/// A timer is registered when it is polled first, and cancelled when it is dropped.
fn add(deadline: Instant, waker: &Waker) -> Pin<Box<Sleep>> {
    let mut timer = Box::pin(sleep_until(deadline));
    assert!(timer.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    timer
}

fn main() {
    let line = std::io::stdin().lines().next().unwrap().unwrap();
    let given: Vec<usize> = line.split(' ').filter_map(|word| word.split_once('=')?.1.parse().ok()).collect();
    let (pending, samples) = (given[0], given[1]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _inside = runtime.enter();
    let base = Instant::now();
    let stamps = Arc::new(Stamps(base, Mutex::new(Vec::with_capacity(samples))));
    let waker = Waker::from(stamps.clone());
    let mut random: u64 = 1;
    let mut draw = move || {
        random = random.wrapping_mul(25_214_903_917).wrapping_add(11) & ((1 << 48) - 1);
        (random >> 16) as usize
    };
    let far = |drawn: usize| base + Duration::from_millis(600_000 + drawn as u64 % 600_000);
    let mut ring: Vec<Option<Pin<Box<Sleep>>>> = (0..pending).map(|_| Some(add(far(draw()), &waker))).collect();
    let mut taken = vec![Vec::with_capacity(samples); 4];
    for _ in 0..2 {
        taken.iter_mut().for_each(Vec::clear);
        for _ in 0..samples {
            let (place, deadline) = (draw() % pending, far(draw()));
            let at = [(); 2].map(|()| base.elapsed());
            ring[place] = None;
            let cancelled = base.elapsed();
            ring[place] = Some(add(deadline, &waker));
            let added = base.elapsed();
            taken[0].push((at[1] - at[0]).as_nanos() as u64);
            taken[1].push((added - cancelled).as_nanos() as u64);
            taken[2].push((cancelled - at[1]).as_nanos() as u64);
        }
        stamps.1.lock().unwrap().clear();
        let due = Instant::now() + Duration::from_millis(2_000);
        let _herd: Vec<_> = (0..samples / 10).map(|_| add(due, &waker)).collect();
        runtime.block_on(sleep_until(due + Duration::from_millis(50)));
        let fired = stamps.1.lock().unwrap();
        assert_eq!(fired.len(), samples / 10);
        taken[3].extend(fired.windows(2).map(|pair| pair[1] - pair[0]));
    }
    let mut said = Vec::new();
    for (name, values) in ["clock", "add", "cancel", "expire"].iter().zip(&mut taken) {
        values.sort_unstable();
        for (part, share) in [("p50", 500), ("p99", 990), ("p999", 999)] {
            said.push(format!("\"{name}_{part}\": {}", values[values.len() * share / 1_000]));
        }
    }
    println!("{{{}}}", said.join(", "));
    std::io::stdin().lines().next();
    std::process::exit(0);
}
