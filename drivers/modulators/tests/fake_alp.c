/* A fake of ViALUX' ALP library, with its rules: what a caller does out of order is refused, as the real one does. */
#include <stdlib.h>
#include <string.h>

#define OK 0
#define NOT_READY 1002
#define PARM_INVALID 1005
#define SEQ_IN_USE 1008
#define WIDTH 64
#define HEIGHT 48
#define MIN_PICTURE_US 44

typedef struct { long id, bits, count, picture, illuminate, pulse, delay, uninterrupted; unsigned char *data; } Sequence;
static Sequence sequences[8];
static long allocated, running, next_id = 1, mode = 2301;
static unsigned char gate[18];
long fake_halts, fake_starts, fake_cycles_ended;

static Sequence *find(long id) {
    for (int i = 0; i < 8; i++) if (sequences[i].id == id && id) return &sequences[i];
    return 0;
}
long AlpDevAlloc(long device, long init, unsigned long *id) {
    if (allocated) return NOT_READY;
    (void)device; (void)init;
    allocated = 1; *id = 7;
    return OK;
}
long AlpDevInquire(unsigned long id, long what, long *value) {
    if (!allocated || id != 7) return PARM_INVALID;
    switch (what) {
        case 2057: *value = HEIGHT; return OK;
        case 2058: *value = WIDTH; return OK;
        case 2000: *value = 12345; return OK; /* ALP_DEVICE_NUMBER */
        case 2003: *value = 1000; return OK;
        case 2021: *value = 4; return OK;
    }
    return PARM_INVALID;
}
long AlpDevControlEx(unsigned long id, long what, void *value) {
    if (!allocated || id != 7 || what != 2023) return PARM_INVALID;
    memcpy(gate, value, sizeof gate);
    return gate[0] >= 1 && gate[0] <= 16 ? OK : PARM_INVALID;
}
long AlpSeqAlloc(unsigned long id, long bits, long count, long *out) {
    if (!allocated || id != 7 || bits != 1 || count < 1) return PARM_INVALID;
    for (int i = 0; i < 8; i++) if (!sequences[i].id) {
        sequences[i] = (Sequence){next_id++, bits, count, 33333, 33333, 0, 0, 0, calloc(count, WIDTH * HEIGHT)};
        *out = sequences[i].id;
        return OK;
    }
    return 1007; /* memory full */
}
long AlpSeqPut(unsigned long id, long sequence, long offset, long load, void *data) {
    Sequence *s = find(sequence);
    if (id != 7 || !s || offset) return PARM_INVALID;
    if (running == sequence) return SEQ_IN_USE;
    memcpy(s->data, data, (load ? load : s->count) * WIDTH * HEIGHT);
    return OK;
}
long AlpSeqTiming(unsigned long id, long sequence, long illuminate, long picture, long delay, long width, long in_delay) {
    Sequence *s = find(sequence);
    if (id != 7 || !s || delay < 0 || in_delay < 0) return PARM_INVALID;
    if (running) return NOT_READY;
    if (picture && (picture < MIN_PICTURE_US || (illuminate && illuminate > picture))) return PARM_INVALID;
    s->picture = picture ? picture : 33333;
    s->illuminate = illuminate ? illuminate : s->picture;
    s->pulse = width; s->delay = in_delay;
    return OK;
}
long AlpSeqControl(unsigned long id, long sequence, long what, long value) {
    Sequence *s = find(sequence);
    if (id != 7 || !s || what != 2104) return PARM_INVALID;
    if (running) return NOT_READY;
    s->uninterrupted = value == 2106;
    return OK;
}
long AlpSeqInquire(unsigned long id, long sequence, long what, long *value) {
    Sequence *s = find(sequence);
    if (id != 7 || !s) return PARM_INVALID;
    if (what == 2203) *value = s->picture; else if (what == 2204) *value = s->illuminate; else return PARM_INVALID;
    return OK;
}
long AlpSeqFree(unsigned long id, long sequence) {
    Sequence *s = find(sequence);
    if (id != 7 || !s) return PARM_INVALID;
    if (running == sequence) return SEQ_IN_USE;
    free(s->data);
    memset(s, 0, sizeof *s);
    return OK;
}
long AlpProjControl(unsigned long id, long what, long value) {
    if (!allocated || id != 7 || what != 2300) return PARM_INVALID;
    if (running) return NOT_READY;
    mode = value;
    return OK;
}
long AlpProjStartCont(unsigned long id, long sequence) {
    if (id != 7 || !find(sequence)) return PARM_INVALID;
    running = sequence; fake_starts++;
    return OK;
}
static long halting;
long AlpProjHalt(unsigned long id) {
    if (!allocated || id != 7) return PARM_INVALID;
    halting = 1;
    return OK;
}
long AlpProjWait(unsigned long id) {
    if (id != 7 || (running && !halting)) return NOT_READY; /* it would wait for ever */
    if (running) fake_cycles_ended++;
    running = halting = 0;
    return OK;
}
long AlpDevHalt(unsigned long id) {
    if (!allocated || id != 7) return PARM_INVALID;
    running = 0; fake_halts++;
    return OK;
}
long AlpDevFree(unsigned long id) {
    if (!allocated || id != 7) return PARM_INVALID;
    if (running) return NOT_READY;
    allocated = 0;
    return OK;
}
/* for the test: the state of the device */
long fake_state(const char *name) {
    Sequence *s = find(running);
    if (!strcmp(name, "running")) return running;
    if (!strcmp(name, "cycles_ended")) return fake_cycles_ended;
    if (!strcmp(name, "mode")) return mode;
    if (!strcmp(name, "period")) return gate[0];
    if (!strcmp(name, "gates")) { long n = 0; for (int i = 2; i < 18; i++) n += gate[i]; return n; }
    if (!strcmp(name, "count")) return s ? s->count : -1;
    if (!strcmp(name, "picture")) return s ? s->picture : -1;
    if (!strcmp(name, "pulse")) return s ? s->pulse : -1;
    if (!strcmp(name, "uninterrupted")) return s ? s->uninterrupted : -1;
    return -2;
}
long fake_pixel(long picture, long y, long x) {
    Sequence *s = find(running);
    return s && picture < s->count ? s->data[(picture * HEIGHT + y) * WIDTH + x] : -1;
}
