// Go's timers: the time of each operation, as bench/timer_table.py describes it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	var pending, samples int
	fmt.Scanf("run timer-percentiles pending=%d samples=%d\n", &pending, &samples)
	random := uint64(1)
	draw := func() int {
		random = (random*25_214_903_917 + 11) & (1<<48 - 1)
		return int(random >> 16)
	}
	far := func() time.Duration { return time.Duration(600_000+draw()%600_000) * time.Millisecond }
	nothing := func() {}
	ring := make([]*time.Timer, pending)
	for place := range ring {
		ring[place] = time.AfterFunc(far(), nothing)
	}
	base := time.Now()
	taken := map[string][]int64{}
	for range 2 {
		clear(taken)
		for range samples {
			place, delay := draw()%pending, far()
			began := time.Since(base)
			started := time.Since(base)
			ring[place].Stop()
			cancelled := time.Since(base)
			ring[place] = time.AfterFunc(delay, nothing)
			added := time.Since(base)
			taken["clock"] = append(taken["clock"], int64(started-began))
			taken["add"] = append(taken["add"], int64(added-cancelled))
			taken["cancel"] = append(taken["cancel"], int64(cancelled-started))
		}
		stamps := make([]int64, samples/10)
		var fired atomic.Int64
		var all sync.WaitGroup
		all.Add(len(stamps))
		due := time.Now().Add(2 * time.Second)
		for range stamps {
			time.AfterFunc(time.Until(due), func() {
				stamps[fired.Add(1)-1] = int64(time.Since(base))
				all.Done()
			})
		}
		all.Wait()
		slices.Sort(stamps)
		for at := range len(stamps) - 1 {
			taken["expire"] = append(taken["expire"], stamps[at+1]-stamps[at])
		}
	}
	said := map[string]int64{}
	for name, values := range taken {
		slices.Sort(values)
		for part, share := range map[string]int{"p50": 500, "p99": 990, "p999": 999} {
			said[name+"_"+part] = values[len(values)*share/1000]
		}
	}
	json.NewEncoder(os.Stdout).Encode(said)
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(ring)
}
