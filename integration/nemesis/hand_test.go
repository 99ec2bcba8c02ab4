package nemesis_test

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// fault is one kind of harm. inject does it, undoes it, and returns; an error
// says that there was nothing to harm.
type fault struct {
	name   string
	cards  int  // how often it is in the deck
	lucky  bool // it may find nothing to harm for a whole run
	inject func(ctx context.Context, a *arena, random *rand.Rand) error
}

// hand is one of those that do harm at the same time. It deals its deck to the
// end before it shuffles again, so every kind comes up.
type hand struct {
	name   string
	deck   []fault
	before time.Duration // at most, each time
}

// play goes on until ctx ends. What the seed decides of one card does not hang
// on how long the others took.
func (h hand) play(ctx context.Context, a *arena) {
	for round := uint64(0); ; round++ {
		for number, card := range h.shuffled(a.seed, round) {
			random := rand.New(rand.NewPCG(a.seed+hashed(h.name), round<<16+uint64(number)))
			linger(ctx, time.Duration(random.Float64()*float64(h.before)))
			if ctx.Err() != nil {
				return
			}
			a.chronicle.note(card.name, "", card.inject(ctx, a, random))
		}
	}
}

func (h hand) shuffled(seed, round uint64) []fault {
	var cards []fault
	for _, fault := range h.deck {
		for range fault.cards {
			cards = append(cards, fault)
		}
	}
	rand.New(rand.NewPCG(seed^hashed(h.name), round)).Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
	return cards
}

func hashed(text string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	return hash.Sum64()
}

// between draws a length of time.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Float64()*float64(most-least))
}
