//go:build ignore

/* SHA-256 (FIPS 180-4), streaming, any alignment. */
#include <stddef.h>
#include <stdint.h>

struct sha256 {
	uint32_t state[8];
	uint64_t size;     /* bytes hashed */
	uint8_t block[64]; /* the last size % 64 bytes */
};

static void sha256_init(struct sha256 *s)
{
	static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	for (int i = 0; i < 8; i++)
		s->state[i] = initial[i];
	s->size = 0;
}

static inline uint32_t sha256_rotate(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static inline uint32_t sha256_load(const uint8_t *p)
{
	uint32_t x;
	__builtin_memcpy(&x, p, 4);
	return __builtin_bswap32(x);
}

static void sha256_blocks(struct sha256 *s, const uint8_t *data, size_t blocks)
{
	static const uint32_t k[64] = {
		0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
		0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
		0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
		0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
		0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
		0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
	};
	uint32_t a = s->state[0], b = s->state[1], c = s->state[2], d = s->state[3];
	uint32_t e = s->state[4], f = s->state[5], g = s->state[6], h = s->state[7];

	for (; blocks; blocks--, data += 64) {
		uint32_t w[64];
		for (int i = 0; i < 16; i++)
			w[i] = sha256_load(data + 4 * i);
		for (int i = 16; i < 64; i++) {
			uint32_t x = w[i - 15], y = w[i - 2];
			w[i] = w[i - 16] + w[i - 7] + (sha256_rotate(x, 7) ^ sha256_rotate(x, 18) ^ x >> 3) +
			       (sha256_rotate(y, 17) ^ sha256_rotate(y, 19) ^ y >> 10);
		}
/* Instead of moving values, the eight variables rotate their roles from round to round and are back after eight. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                                                  \
	{                                                                                                                                 \
		uint32_t t = h + (sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25)) + (g ^ (e & (f ^ g))) + k[i] + w[i]; \
		d += t;                                                                                                                   \
		h = t + (sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22)) + ((a & b) | (c & (a | b)));                  \
	}
		for (int i = 0; i < 64; i += 8) {
			ROUND(a, b, c, d, e, f, g, h, i)
			ROUND(h, a, b, c, d, e, f, g, i + 1)
			ROUND(g, h, a, b, c, d, e, f, i + 2)
			ROUND(f, g, h, a, b, c, d, e, i + 3)
			ROUND(e, f, g, h, a, b, c, d, i + 4)
			ROUND(d, e, f, g, h, a, b, c, i + 5)
			ROUND(c, d, e, f, g, h, a, b, i + 6)
			ROUND(b, c, d, e, f, g, h, a, i + 7)
		}
#undef ROUND
		a = s->state[0] += a;
		b = s->state[1] += b;
		c = s->state[2] += c;
		d = s->state[3] += d;
		e = s->state[4] += e;
		f = s->state[5] += f;
		g = s->state[6] += g;
		h = s->state[7] += h;
	}
}

static void sha256_update(struct sha256 *s, const uint8_t *data, size_t size)
{
	size_t held = s->size % 64;
	s->size += size;
	if (held) {
		while (held < 64 && size) {
			s->block[held++] = *data++;
			size--;
		}
		if (held < 64)
			return;
		sha256_blocks(s, s->block, 1);
	}
	sha256_blocks(s, data, size / 64);
	data += size - size % 64;
	for (size_t i = 0; i < size % 64; i++)
		s->block[i] = data[i];
}

/* Returns the hash of all data. size remains that of the data without padding. */
static void sha256_final(struct sha256 *s, uint8_t sum[32])
{
	uint64_t bits = s->size * 8;
	uint8_t end[72] = {0x80};
	size_t padding = 64 - (s->size + 8) % 64; /* 1 to 64 bytes, the first of them 0x80 */
	for (size_t i = 0; i < 8; i++)
		end[padding + i] = (uint8_t)(bits >> (56 - 8 * i));
	sha256_update(s, end, padding + 8);
	s->size = bits / 8;
	for (int i = 0; i < 32; i++)
		sum[i] = (uint8_t)(s->state[i / 4] >> (24 - i % 4 * 8));
}
