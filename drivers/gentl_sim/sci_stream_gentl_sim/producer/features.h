// Features of a module: registers behind a GenICam XML, both made from one table, so that they cannot disagree.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace sci {

enum class Kind { Integer, Float, Boolean, Enumeration, String, Command };
enum class Access { ReadOnly, ReadWrite, WriteOnly };
enum class Visibility { Beginner, Expert, Guru, Invisible };

/// Integers, booleans and enumerations hold int64_t.
using Value = std::variant<int64_t, double, std::string>;

/// A limit of a feature: a number, or the name of the feature that holds it.
struct Limit {
    Limit(double number) : number(number) {}
    Limit(int number) : number(number) {}  // else a literal 0 might mean a null pointer
    Limit(const char* feature) : feature(feature) {}
    double number = 0;
    std::string feature;
};

/// One choice of an enumeration.
struct Entry {
    std::string name;
    int64_t value;
    std::string available;  ///< Feature that shows whether it can be chosen; empty: always.
};

/// One feature: what it is called, what may be written, and what happens then. Filled in by chained calls.
struct Feature {
    Feature& range(Limit lowest, Limit highest, double step = 0);
    Feature& in(const char* unit_name);
    Feature& entry(const std::string& name, int64_t value, const std::string& available = "");
    Feature& seen_by(Visibility who);
    Feature& custom();                              ///< Not of the standard's naming convention (SFNC).
    Feature& selected_by(const char* selector);     ///< Each value of the selector has a value of its own.
    Feature& locked();                              ///< Cannot be written while a stream runs.
    Feature& saved();                               ///< Part of the user sets.
    Feature& starts_as(Value value);
    Feature& starts_as(int64_t bank, Value value);  ///< For one value of the selector.
    Feature& computed(std::function<Value()> function);
    Feature& changed(std::function<void()> function);  ///< Called after each write, or execution.
    Feature& chunk(uint32_t id);                    ///< Read from that chunk of a buffer, not from the device.

    std::string name, category, tooltip, unit, selector;
    Kind kind = Kind::Integer;
    Access access = Access::ReadWrite;
    Visibility visibility = Visibility::Beginner;
    bool is_standard = true, is_locked = false, is_saved = false, has_range = false;
    Limit min = 0.0, max = 0.0;
    double increment = 0;
    uint32_t chunk_id = 0;
    std::vector<Entry> entries;
    std::function<Value()> compute;
    std::function<void()> on_change;
    Value initial;
    std::map<int64_t, Value> initial_by_bank;
    std::map<int64_t, Value> banks;  ///< What was written, by value of the selector (0 without one).
    uint64_t address = 0;
};

/// All features of one module. Not synchronised: its owner holds a lock.
class FeatureMap {
public:
    static constexpr uint64_t kXmlAddress = 0x1000000;
    static constexpr size_t kStringBytes = 512;  ///< Length of a string's register: a path must fit.

    Feature& integer(const char* name, const char* category, const char* tooltip);
    Feature& number(const char* name, const char* category, const char* tooltip);
    Feature& boolean(const char* name, const char* category, const char* tooltip);
    Feature& enumeration(const char* name, const char* category, const char* tooltip);
    Feature& text(const char* name, const char* category, const char* tooltip);
    Feature& command(const char* name, const char* category, const char* tooltip);

    Feature& at(const std::string& name);
    const std::deque<Feature>& all() const { return features_; }

    /// Values by name; with a bank, of that value of the selector rather than of the present one.
    Value value(const std::string& name);
    Value value(const std::string& name, int64_t bank);
    int64_t get_integer(const std::string& name) { return std::get<int64_t>(value(name)); }
    int64_t get_integer(const std::string& name, int64_t bank) { return std::get<int64_t>(value(name, bank)); }
    double get_number(const std::string& name) { return std::get<double>(value(name)); }
    std::string get_text(const std::string& name) { return std::get<std::string>(value(name)); }

    /// Set without checks and without calling `changed`: for the camera itself.
    void set(const std::string& name, Value value);

    /// Set every feature to what it starts as.
    void reset();

    /// The saved features' values, and back.
    using Saved = std::vector<std::pair<std::string, std::map<int64_t, Value>>>;
    Saved save() const;
    void load(const Saved& saved);

    /// Access by register, as a port does. Throws `Error`; nothing has changed then.
    void read(uint64_t address, void* buffer, size_t size);
    void write(uint64_t address, const void* buffer, size_t size);

    /// The description that a consumer's GenApi reads: schema 1.1, for the port of that name.
    std::string xml(const std::string& model, const std::string& port) const;

    /// Shows whether a stream runs, so that locked features refuse to be written.
    std::function<bool()> is_locked = [] { return false; };

private:
    Feature& add(Kind kind, const char* name, const char* category, const char* tooltip, Value initial);
    Feature& register_at(uint64_t address);
    int64_t bank_of(const Feature& feature);
    double limit(const Limit& limit);
    void check(Feature& feature, const Value& value);

    std::deque<Feature> features_;  // a deque keeps references valid while it grows
    std::map<std::string, Feature*> by_name_;
};

}  // namespace sci
