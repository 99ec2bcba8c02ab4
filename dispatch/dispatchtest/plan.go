package dispatchtest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
)

// Plan chooses the fault of one request. request counts the requests with
// the same key, from 1. A plan is called concurrently.
type Plan func(key string, request int) Fault

// Healthy never fails.
func Healthy() Plan {
	return func(string, int) Fault { return None }
}

// Always fails every request.
func Always(fault Fault) Plan {
	return func(string, int) Fault { return fault }
}

// Script fails the requests of every key by the list, first request first,
// and none after its end.
func Script(faults ...Fault) Plan {
	return func(_ string, request int) Fault {
		if request > len(faults) {
			return None
		}
		return faults[request-1]
	}
}

// ScriptKeys is a Script for each listed key; other keys never fail.
func ScriptKeys(scripts map[string][]Fault) Plan {
	return func(key string, request int) Fault { return Script(scripts[key]...)(key, request) }
}

// Random fails by probability. The choice depends on the seed, the key and
// the number of the request alone, not on the order in which requests come.
// It panics where a probability is outside [0, 1] or their sum over 1.
func Random(seed uint64, odds map[Fault]float64) Plan {
	faults := make([]Fault, 0, len(odds))
	sum := 0.0
	for fault, probability := range odds {
		if !(probability >= 0 && probability <= 1) {
			panic(fmt.Sprintf("dispatchtest: probability %v of fault %s is outside [0, 1]", probability, fault))
		}
		faults = append(faults, fault)
		sum += probability
	}
	if sum > 1+1e-9 {
		panic(fmt.Sprintf("dispatchtest: the probabilities add up to %v", sum))
	}
	slices.Sort(faults)
	return func(key string, request int) Fault {
		at := fraction(seed, key, request)
		for _, fault := range faults {
			if at -= odds[fault]; at < 0 {
				return fault
			}
		}
		return None
	}
}

// fraction is a number in [0, 1) that looks random.
func fraction(seed uint64, key string, request int) float64 {
	hash := fnv.New64a()
	var numbers [16]byte
	binary.LittleEndian.PutUint64(numbers[:8], seed)
	binary.LittleEndian.PutUint64(numbers[8:], uint64(request))
	hash.Write(numbers[:])
	hash.Write([]byte(key))
	mixed := hash.Sum64()
	mixed = (mixed ^ mixed>>33) * 0xff51afd7ed558ccd // FNV alone spreads its high bits badly
	mixed ^= mixed >> 33
	return float64(mixed>>11) / math.Exp2(53)
}
