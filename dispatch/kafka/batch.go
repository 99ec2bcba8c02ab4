package kafka

import (
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch/internal/message"
)

// The layout of a record batch, https://kafka.apache.org/documentation/#recordbatch.
const (
	magic            = 2
	noProducer       = -1 // the one request is not repeated, so there is nothing to number
	lengthStartsFrom = 12 // octets before what the length counts
	crcStartsFrom    = 21 // octets before what the checksum covers
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch writes the record as a batch of one.
func (r record) batch(created time.Time) []byte {
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1,
		Magic:                magic,
		FirstTimestamp:       created.UnixMilli(),
		MaxTimestamp:         created.UnixMilli(),
		ProducerID:           noProducer,
		ProducerEpoch:        noProducer,
		FirstSequence:        noProducer,
		NumRecords:           1,
		Records:              r.encode(),
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - lengthStartsFrom)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[crcStartsFrom:], castagnoli))
	return batch.AppendTo(nil)
}

func (r record) encode() []byte {
	encoded := kmsg.Record{Key: r.key, Value: r.value, Headers: encodeHeaders(r.headers)}
	withoutLength := len(encoded.AppendTo(nil)) - kbin.VarintLen(0)
	encoded.Length = int32(withoutLength)
	return encoded.AppendTo(nil)
}

func encodeHeaders(headers []message.Header) []kmsg.Header {
	encoded := make([]kmsg.Header, len(headers))
	for i, header := range headers {
		encoded[i] = kmsg.Header{Key: header.Name, Value: []byte(header.Value)}
	}
	return encoded
}
