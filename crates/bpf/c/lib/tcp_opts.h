/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The options of a TCP header. */
#pragma once
#include "lib/tcp.h"

/* Their kinds (IANA, TCP Option Kind Numbers). */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MSS 2
#define OPTION_WINDOW_SCALE 3
#define OPTION_SACK_PERMITTED 4
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define OPTION_MD5 19
#define OPTION_AO 29
#define OPTION_MPTCP 30
#define OPTION_FASTOPEN 34
#define OPTION_EXPERIMENT 254 /* RFC 6994: the number behind the length says which experiment */
#define FAST_OPEN_EXPERIMENT 0xf989

#define OPTIONS_AT 4 /* in `bytes`, so that 0 is no option's place */
#define OPTIONS_END (OPTIONS_AT + 40)

/* The options of a TCP header: a copy, padded with zeros, and the offsets of the relevant ones (0: absent).
 * It is in a map because the verifier then tracks only the bounds. The length of the copy is a power of two,
 * so masked offsets stay inside. */
struct options {
	__u8 bytes[64];
	__u32 len;
	volatile __u32 at; /* for find_options() */
	__u32 mss, window_scale, sack_permitted, sack, timestamps, mptcp, fastopen, signature;
};

SCRATCH(options_scratch, struct options);

static __always_inline __u8 *option_byte(struct options *options, __u32 at)
{
	asm volatile("%0 &= 63" : "+r"(at)); /* in C the compiler would drop the mask that the verifier needs */
	return &options->bytes[at];
}

static __always_inline __u32 option_len(struct options *options, __u32 at)
{
	return *option_byte(options, at + 1);
}

GLOBAL int note_option(struct options *options, __u32 at)
{
	if (!options)
		return 0;
	switch (*option_byte(options, at)) {
	case OPTION_MSS: options->mss = at; break;
	case OPTION_WINDOW_SCALE: options->window_scale = at; break;
	case OPTION_SACK_PERMITTED: options->sack_permitted = at; break;
	case OPTION_SACK: options->sack = at; break;
	case OPTION_TIMESTAMPS: options->timestamps = at; break;
	case OPTION_MPTCP: options->mptcp = at; break;
	case OPTION_FASTOPEN: options->fastopen = at; break;
	case OPTION_EXPERIMENT:
		if (option_len(options, at) >= 4 &&
		    (*option_byte(options, at + 2) << 8 | *option_byte(options, at + 3)) == FAST_OPEN_EXPERIMENT)
			options->fastopen = at;
		break;
	case OPTION_MD5:
	case OPTION_AO: options->signature = at; break;
	}
	return 0;
}

/* The offset is kept in memory: the verifier doesn't track values there, so it need not follow each path
 * through the options. */
GLOBAL int find_options(struct options *options)
{
	if (!options)
		return 0;
	options->at = OPTIONS_AT;
	for (__u32 i = OPTIONS_AT; i < OPTIONS_END; i++) {
		__u32 at = options->at;
		if (at >= OPTIONS_AT + options->len)
			break;
		__u8 kind = *option_byte(options, at);
		if (kind == OPTION_END)
			break;
		if (kind == OPTION_NOP) {
			options->at = at + 1;
			continue;
		}
		/* As in tcp_parse_options(): a truncated option is ignored. */
		__u32 len = option_len(options, at);
		if (len < 2 || at + len > OPTIONS_AT + options->len)
			break;
		note_option(options, at);
		options->at = at + len;
	}
	return 0;
}

/* NULL: there are none. Each call overwrites the previous result. */
static __noinline struct options *read_options(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 len = segment->tcp_header_len - sizeof(struct tcphdr);
	struct options *options = ONLY_ENTRY(options_scratch);

	if (!options || len == 0 || len > OPTIONS_END - OPTIONS_AT)
		return 0;
	__builtin_memset(options, 0, sizeof(*options));
	options->len = len;
	__u32 last = len - 1;
	asm volatile("%0 &= 63" : "+r"(last)); /* for the verifier */
	if (last >= OPTIONS_END - OPTIONS_AT)
		return 0;
	if (bpf_skb_load_bytes(skb, segment->ip.payload_at + sizeof(struct tcphdr),
			       options->bytes + OPTIONS_AT, last + 1))
		return 0;
	find_options(options);
	return options;
}

/* The caller must update the checksum. */
static __always_inline int write_options(struct __sk_buff *skb, const struct segment *segment,
					 const struct options *options)
{
	__u32 last = options->len - 1;

	asm volatile("%0 &= 63" : "+r"(last)); /* for the verifier */
	if (last >= OPTIONS_END - OPTIONS_AT)
		return -1;
	return bpf_skb_store_bytes(skb, segment->ip.payload_at + sizeof(struct tcphdr),
				   options->bytes + OPTIONS_AT, last + 1, 0);
}

/* To be called before they are changed. */
static __always_inline __s64 begin_options(const struct options *options)
{
	return bpf_csum_diff((__be32 *)options->bytes, sizeof(options->bytes), 0, 0, 0);
}

/* Writes them and updates the checksum. `sum`: of begin_options(). Where an option stands at an odd place,
 * the sums of its words would be wrong: so all of them are compared. */
static __always_inline int finish_options(struct __sk_buff *skb, const struct segment *segment,
					  const struct options *options, __s64 sum)
{
	sum = bpf_csum_diff(0, 0, (__be32 *)options->bytes, sizeof(options->bytes), sum);
	bpf_l4_csum_replace(skb, tcp_check_at(segment), 0, sum, 0);
	return write_options(skb, segment, options);
}

static __always_inline __u32 option_word(struct options *options, __u32 at)
{
	__be32 word;

	for (__u32 i = 0; i < sizeof(word); i++)
		((__u8 *)&word)[i] = *option_byte(options, at + i);
	return bpf_ntohl(word);
}

static __always_inline void set_option_word(struct options *options, __u32 at, __u32 value)
{
	__be32 word = bpf_htonl(value);

	for (__u32 i = 0; i < sizeof(word); i++)
		*option_byte(options, at + i) = ((__u8 *)&word)[i];
}

/* Each number of the SACK blocks: at most four blocks of two. */
static __always_inline void shift_sack_blocks(struct options *options, __u32 shift)
{
	__u32 at = options->sack + 2;
	__u32 len = option_len(options, options->sack);

	for (__u32 edge = 0; edge < 8; edge++, at += 4) {
		if (2 + (edge + 1) * 4 > len || at > OPTIONS_END - 4)
			break;
		set_option_word(options, at, option_word(options, at) + shift);
	}
}

struct timestamps {
	__u32 value, echo; /* TSval and TSecr of RFC 7323 */
};

#define OPTION_TIMESTAMPS_LEN 10
#define TIMESTAMP_VALUE 2 /* places in the option */
#define TIMESTAMP_ECHO 6

/* Nonzero: the segment has none. */
static __always_inline int read_timestamps(struct options *options, struct timestamps *out)
{
	if (!options || !options->timestamps || option_len(options, options->timestamps) != OPTION_TIMESTAMPS_LEN)
		return -1;
	out->value = option_word(options, options->timestamps + TIMESTAMP_VALUE);
	out->echo = option_word(options, options->timestamps + TIMESTAMP_ECHO);
	return 0;
}

/* Nearly all segments carry only timestamps, in the kernel's layout: two NOPs for alignment, then the
 * option. */
#define ONLY_TIMESTAMPS                                                                                      \
	bpf_htonl(OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMPS << 8 | OPTION_TIMESTAMPS_LEN)

/* Nonzero: the segment has other options, or none. */
static __always_inline int read_only_timestamps(struct __sk_buff *skb, const struct segment *segment,
						struct timestamps *out)
{
	__be32 words[3];

	if (segment->tcp_header_len != sizeof(struct tcphdr) + sizeof(words))
		return -1;
	if (bpf_skb_load_bytes(skb, segment->ip.payload_at + sizeof(struct tcphdr), words, sizeof(words)))
		return -1;
	if (words[0] != ONLY_TIMESTAMPS)
		return -1;
	out->value = bpf_ntohl(words[1]);
	out->echo = bpf_ntohl(words[2]);
	return 0;
}

#define MOST_WINDOW_SCALE 14 /* RFC 7323, 2.3 */

/* As tcp_parse_options() reads it. */
static __always_inline __u8 window_scale(struct options *options)
{
	__u8 scale = *option_byte(options, options->window_scale + 2);
	return scale < MOST_WINDOW_SCALE ? scale : MOST_WINDOW_SCALE;
}

#define DEFAULT_MSS 536 /* TCP_MSS_DEFAULT: where a SYN has no such option */

static __always_inline __u16 maximum_segment_size(struct options *options)
{
	if (!options->mss || option_len(options, options->mss) != 4)
		return DEFAULT_MSS;
	__u16 mss = *option_byte(options, options->mss + 2) << 8 | *option_byte(options, options->mss + 3);
	return mss ? mss : DEFAULT_MSS;
}
