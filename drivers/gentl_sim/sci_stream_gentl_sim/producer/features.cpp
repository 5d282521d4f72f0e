#include "features.h"

#include <cmath>
#include <cstring>

#include "error.h"

namespace sci {

namespace {

constexpr uint64_t kSpacing = 0x400;  // registers are this far apart: longer than the longest

size_t register_bytes(const Feature& feature) {
    return feature.kind == Kind::String ? FeatureMap::kStringBytes : 8;
}

}  // namespace

Feature& Feature::range(Limit lowest, Limit highest, double step) {
    min = lowest;
    max = highest;
    increment = step;
    has_range = true;
    return *this;
}

Feature& Feature::in(const char* unit_name) {
    unit = unit_name;
    return *this;
}

Feature& Feature::entry(const std::string& entry_name, int64_t value, const std::string& available) {
    entries.push_back({entry_name, value, available});
    return *this;
}

Feature& Feature::seen_by(Visibility who) {
    visibility = who;
    return *this;
}

Feature& Feature::custom() {
    is_standard = false;
    return *this;
}

Feature& Feature::selected_by(const char* by) {
    selector = by;
    return *this;
}

Feature& Feature::locked() {
    is_locked = true;
    return *this;
}

Feature& Feature::saved() {
    is_saved = true;
    return *this;
}

Feature& Feature::starts_as(Value value) {
    initial = std::move(value);
    return *this;
}

Feature& Feature::starts_as(int64_t bank, Value value) {
    initial_by_bank[bank] = std::move(value);
    return *this;
}

Feature& Feature::computed(std::function<Value()> function) {
    compute = std::move(function);
    access = Access::ReadOnly;
    return *this;
}

Feature& Feature::changed(std::function<void()> function) {
    on_change = std::move(function);
    return *this;
}

Feature& Feature::chunk(uint32_t id) {
    chunk_id = id;
    access = Access::ReadOnly;
    return *this;
}

Feature& FeatureMap::add(Kind kind, const char* name, const char* category, const char* tooltip, Value initial) {
    Feature& feature = features_.emplace_back();
    feature.kind = kind;
    feature.name = name;
    feature.category = category;
    feature.tooltip = tooltip;
    feature.initial = std::move(initial);
    feature.address = features_.size() * kSpacing;
    by_name_[name] = &feature;
    return feature;
}

Feature& FeatureMap::integer(const char* name, const char* category, const char* tooltip) {
    return add(Kind::Integer, name, category, tooltip, int64_t{0});
}

Feature& FeatureMap::number(const char* name, const char* category, const char* tooltip) {
    return add(Kind::Float, name, category, tooltip, 0.0);
}

Feature& FeatureMap::boolean(const char* name, const char* category, const char* tooltip) {
    return add(Kind::Boolean, name, category, tooltip, int64_t{0}).range(0, 1);
}

Feature& FeatureMap::enumeration(const char* name, const char* category, const char* tooltip) {
    return add(Kind::Enumeration, name, category, tooltip, int64_t{0});
}

Feature& FeatureMap::text(const char* name, const char* category, const char* tooltip) {
    return add(Kind::String, name, category, tooltip, std::string());
}

Feature& FeatureMap::command(const char* name, const char* category, const char* tooltip) {
    Feature& feature = add(Kind::Command, name, category, tooltip, int64_t{0});
    feature.access = Access::WriteOnly;
    return feature;
}

Feature& FeatureMap::at(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
        throw std::logic_error("no feature is called " + name);
    }
    return *found->second;
}

int64_t FeatureMap::bank_of(const Feature& feature) {
    return feature.selector.empty() ? 0 : get_integer(feature.selector);
}

Value FeatureMap::value(const std::string& name) { return value(name, bank_of(at(name))); }

Value FeatureMap::value(const std::string& name, int64_t bank) {
    Feature& feature = at(name);
    if (feature.compute) {
        return feature.compute();
    }
    const auto written = feature.banks.find(bank);
    if (written != feature.banks.end()) {
        return written->second;
    }
    const auto initial = feature.initial_by_bank.find(bank);
    return initial != feature.initial_by_bank.end() ? initial->second : feature.initial;
}

void FeatureMap::set(const std::string& name, Value value) {
    Feature& feature = at(name);
    feature.banks[bank_of(feature)] = std::move(value);
}

void FeatureMap::reset() {
    for (Feature& feature : features_) {
        feature.banks.clear();
    }
}

FeatureMap::Saved FeatureMap::save() const {
    Saved saved;
    for (const Feature& feature : features_) {
        if (feature.is_saved) {
            saved.emplace_back(feature.name, feature.banks);
        }
    }
    return saved;
}

void FeatureMap::load(const Saved& saved) {
    for (const auto& [name, banks] : saved) {
        at(name).banks = banks;
    }
}

Feature& FeatureMap::register_at(uint64_t address) {
    const uint64_t index = address / kSpacing;
    if (address % kSpacing != 0 || index == 0 || index > features_.size()) {
        throw Error(gentl::GC_ERR_INVALID_ADDRESS, format("no register is at address 0x%llx",
                                                          static_cast<unsigned long long>(address)));
    }
    return features_[index - 1];
}

void FeatureMap::read(uint64_t address, void* buffer, size_t size) {
    Feature& feature = register_at(address);
    if (feature.access == Access::WriteOnly || feature.chunk_id != 0) {
        throw Error(gentl::GC_ERR_ACCESS_DENIED, feature.name + " cannot be read");
    }
    if (size > register_bytes(feature)) {
        throw Error(gentl::GC_ERR_INVALID_ADDRESS,
                    format("%s: the register has %zu bytes, %zu were asked for", feature.name.c_str(),
                           register_bytes(feature), size));
    }
    const Value current = value(feature.name);
    std::memset(buffer, 0, size);
    if (const auto* string = std::get_if<std::string>(&current)) {
        std::memcpy(buffer, string->data(), std::min(size, string->size()));
    } else if (const auto* real = std::get_if<double>(&current)) {
        std::memcpy(buffer, real, std::min(size, sizeof *real));
    } else {
        std::memcpy(buffer, &std::get<int64_t>(current), std::min(size, sizeof(int64_t)));
    }
}

double FeatureMap::limit(const Limit& limit) {
    if (limit.feature.empty()) {
        return limit.number;
    }
    const Value held = value(limit.feature);
    const auto* real = std::get_if<double>(&held);
    return real != nullptr ? *real : static_cast<double>(std::get<int64_t>(held));
}

void FeatureMap::check(Feature& feature, const Value& value) {
    if (feature.kind == Kind::Enumeration) {
        const int64_t chosen = std::get<int64_t>(value);
        for (const Entry& entry : feature.entries) {
            if (entry.value == chosen && (entry.available.empty() || get_integer(entry.available) != 0)) {
                return;
            }
        }
        throw Error(gentl::GC_ERR_INVALID_VALUE, format("%s has no choice with the value %lld, or not now",
                                                        feature.name.c_str(), static_cast<long long>(chosen)));
    }
    if (!feature.has_range || feature.kind == Kind::String) {
        return;
    }
    const auto* real = std::get_if<double>(&value);
    const double number = real != nullptr ? *real : static_cast<double>(std::get<int64_t>(value));
    const double lowest = limit(feature.min), highest = limit(feature.max);
    const bool in_steps = feature.increment == 0 || std::fmod(number - lowest, feature.increment) == 0;
    if (!(number >= lowest && number <= highest) || !in_steps) {  // so written, NaN is refused too
        throw Error(gentl::GC_ERR_INVALID_VALUE,
                    format("%s: expected %g to %g%s, got %g", feature.name.c_str(), lowest, highest,
                           feature.increment != 0 ? format(" in steps of %g", feature.increment).c_str() : "", number));
    }
}

void FeatureMap::write(uint64_t address, const void* buffer, size_t size) {
    Feature& feature = register_at(address);
    if (feature.access == Access::ReadOnly) {
        throw Error(gentl::GC_ERR_ACCESS_DENIED, feature.name + " is read only");
    }
    if (size > register_bytes(feature)) {
        throw Error(gentl::GC_ERR_INVALID_ADDRESS,
                    format("%s: the register has %zu bytes, %zu were written", feature.name.c_str(),
                           register_bytes(feature), size));
    }
    if (feature.is_locked && is_locked()) {
        throw Error(gentl::GC_ERR_BUSY, feature.name + " cannot be changed while the camera streams: stop it first");
    }
    Value value;
    if (feature.kind == Kind::String) {
        const char* text = static_cast<const char*>(buffer);
        value = std::string(text, strnlen(text, size));
    } else if (feature.kind == Kind::Float) {
        double real = 0;
        std::memcpy(&real, buffer, size);
        value = real;
    } else {
        int64_t number = 0;
        std::memcpy(&number, buffer, size);
        value = number;
    }
    check(feature, value);
    if (feature.kind == Kind::Command) {
        feature.on_change();
        return;
    }
    const auto before = feature.banks;
    feature.banks[bank_of(feature)] = std::move(value);
    try {
        if (feature.on_change) {
            feature.on_change();
        }
    } catch (...) {
        feature.banks = before;  // what the camera refuses has not happened
        throw;
    }
}

}  // namespace sci
